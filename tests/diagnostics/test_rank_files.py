from __future__ import annotations

import json

import pytest

from toolkit.telemetry.diagnostics import rank_files
from toolkit.telemetry.diagnostics.rank_files import RankFiles
from toolkit.telemetry.runfolder.layout import LinkedRanks, other_ranks


def write(folder, rank, *records):
    path = folder / "ranks" / f"{rank:05d}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    return path


def step(number, session=1):
    return {"event": "step", "seq": number, "session": session, "global_step": number}


def read(files, max_bytes=1 << 20):
    return [(record["rank"], record["global_step"]) for record in files.read(max_bytes)]


def test_steps_come_as_they_are_written(tmp_path):
    files = RankFiles(tmp_path, session=1)
    assert read(files) == []

    write(tmp_path, 1, step(1), {"event": "span", "seq": 2, "session": 1}, step(3))
    assert read(files) == [(1, 1), (1, 3)]
    assert read(files) == []

    write(tmp_path, 1, step(4))
    write(tmp_path, 7, step(1))
    assert sorted(read(files)) == [(1, 4), (7, 1)]


def test_a_line_that_is_being_written_is_left_for_the_next_time(tmp_path):
    files = RankFiles(tmp_path, session=1)
    path = write(tmp_path, 1, step(1))
    whole = json.dumps(step(2)) + "\n"
    with path.open("a") as file:
        file.write(whole[:20])
    assert read(files) == [(1, 1)]

    with path.open("a") as file:
        file.write(whole[20:] + "nonsense\n")
    assert read(files) == [(1, 2)]


def test_earlier_sessions_are_passed_over_without_being_read(tmp_path):
    write(
        tmp_path,
        1,
        *(step(number) for number in range(500)),
        *(step(number, 2) for number in range(500, 510)),
    )

    assert read(RankFiles(tmp_path, session=2)) == [(1, number) for number in range(500, 510)]
    assert read(RankFiles(tmp_path, session=3)) == []


def test_what_is_too_much_at_once_comes_the_next_time_from_who_is_farthest_behind(tmp_path):
    files = RankFiles(tmp_path, session=1)
    for rank in (1, 2):
        write(tmp_path, rank, step(1))
    first = read(files, max_bytes=1)
    second = read(files, max_bytes=1)

    assert {rank for rank, _ in first} | {rank for rank, _ in second} == {1, 2}
    assert len(first) == len(second) == 1


def test_links_and_other_names_are_no_ranks(tmp_path):
    outside = tmp_path / "outside.jsonl"
    outside.write_text(json.dumps(step(1)) + "\n")
    write(tmp_path, 1, step(1))
    for name in ("00000.jsonl", "1.jsonl", "0000x.jsonl", "00002.csv"):
        (tmp_path / "ranks" / name).write_text("{}\n")
    (tmp_path / "ranks" / "00003.jsonl").symlink_to(outside)

    assert other_ranks(tmp_path) == [1]
    assert read(RankFiles(tmp_path, session=1)) == [(1, 1)]


def test_a_folder_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "ranks").symlink_to(tmp_path)

    with pytest.raises(LinkedRanks):
        other_ranks(tmp_path)
    assert read(RankFiles(tmp_path, session=1)) == []


def test_of_a_file_that_grows_faster_than_it_is_read_the_newest_steps_come(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_files, "_MOST_BEHIND", 10_000)
    monkeypatch.setattr(rank_files, "_BLOCK_BYTES", 1_000)
    files = RankFiles(tmp_path, session=1)
    write(tmp_path, 1, step(1))
    assert read(files) == [(1, 1)]

    write(tmp_path, 1, *(step(number) for number in range(2, 500)))
    newest = read(files)

    assert newest[-1] == (1, 499)
    assert len(newest) < 100
    write(tmp_path, 1, step(500))
    assert read(files) == [(1, 500)]
