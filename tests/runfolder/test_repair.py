"""After a kill a run folder is made whole: nothing is lost, nothing comes twice, nothing is rewritten."""

import json
import os
import shutil
import threading

import pandas as pd
import pytest

from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.journal import journal, repair
from toolkit.telemetry.runfolder.journal.head import Owner
from toolkit.telemetry.runfolder.journal.journal import Journal, journals_in
from toolkit.telemetry.runfolder.journal.repair import (
    drain_journal,
    journals_of,
    recover_killed,
    repair_run,
)
from toolkit.telemetry.runfolder.manifest import Manifest, Session, write_manifest
from toolkit.telemetry.runfolder.portable import try_lock

pytestmark = pytest.mark.skipif(os.name != "posix", reason="recovery needs record locks")


def line(seq, **fields):
    return encode({"event": "step", "time": 1.7e9 + seq, "seq": seq, **fields})


OWNER = Owner(run_id="r1", session=1, started=1.7e9)


def say_which_run(folder, owner=OWNER):
    """Write the run.json of a run whose newest session is `owner`'s."""
    session = Session(session=owner.session, started=owner.started, pid=1)
    manifest = Manifest(
        run_id=owner.run_id, name="r", display_name="R", created=owner.started, sessions=(session,)
    )
    write_manifest(folder, manifest)


def leave_journal(folder, *lines, owner=OWNER, place=None):
    """Leave a journal in `folder` as a killed session of its run does."""
    made = Journal.create([place or folder], folder / "metrics.jsonl", owner, segment_bytes=65536)
    for text in lines:
        assert made.append(text)
    made.close(remove=False)
    return made.path


def seqs(folder):
    return [json.loads(text)["seq"] for text in (folder / "metrics.jsonl").read_bytes().splitlines()]


def test_what_is_only_in_the_journal_is_written_out_and_the_journal_removed(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(line(0) + line(1))
    leave_journal(tmp_path, line(1), line(2), line(3))
    repair = repair_run(tmp_path)

    assert (repair.recovered, repair.rows, repair.bad_lines, repair.in_use) == (2, 4, 0, False)
    assert seqs(tmp_path) == [0, 1, 2, 3]
    assert list(journals_in(tmp_path)) == []
    assert pd.read_csv(tmp_path / "metrics.csv")["seq"].tolist() == [0, 1, 2, 3]


def test_repairing_twice_changes_nothing(tmp_path):
    leave_journal(tmp_path, line(0), line(1))
    repair_run(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert repair_run(tmp_path).recovered == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_journal_that_is_being_written_is_left_alone(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(line(0))
    made = Journal.create([tmp_path], tmp_path / "metrics.jsonl", OWNER, segment_bytes=65536)
    made.append(line(1))

    assert repair_run(tmp_path).in_use
    assert seqs(tmp_path) == [0]
    made.close(remove=True)


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder in the place of shared memory."""
    shared = tmp_path / "shared"
    shared.mkdir()
    for module in (repair, journal):
        monkeypatch.setattr(module, "shared_memory_folders", lambda: [shared])
    return shared


def make_run(folder, owner=OWNER):
    folder.mkdir()
    (folder / "metrics.jsonl").write_bytes(line(0))
    say_which_run(folder, owner)
    return folder


@pytest.mark.parametrize(
    ("made_by", "is_its"),
    [
        pytest.param({}, True, id="this very session"),
        pytest.param({"run_id": "r2"}, False, id="another run"),
        pytest.param({"started": 1.6e9}, False, id="a run of the same id that was deleted and begun again"),
        pytest.param({"session": 2, "started": 1.8e9}, False, id="a session that the run does not know"),
    ],
)
@pytest.mark.parametrize("place", ["shared memory", "the run folder"])
def test_a_journal_is_a_run_s_if_run_json_has_its_id_and_session(tmp_path, shared, made_by, is_its, place):
    run = make_run(tmp_path / "run")
    path = leave_journal(
        run,
        line(1),
        owner=OWNER._replace(**made_by),
        place=shared if place == "shared memory" else run,
    )

    assert repair_run(run).recovered == int(is_its)
    assert path.exists() != is_its, "what is not its is kept"
    assert seqs(run) == ([0, 1] if is_its else [0])


def test_a_session_that_is_older_than_those_of_run_json_is_the_run_s(tmp_path, shared):
    run = make_run(tmp_path / "run", OWNER._replace(session=600, started=1.8e9))
    leave_journal(run, line(1), owner=OWNER._replace(session=3), place=shared)

    assert repair_run(run).recovered == 1


@pytest.mark.parametrize("old_place", ["empty", "another run's", "an original"])
def test_a_run_that_was_moved_is_found_by_its_id_unless_it_is_a_copy(tmp_path, shared, old_place):
    run = make_run(tmp_path / "run")
    leave_journal(run, line(1), place=shared)
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    if old_place != "an original":
        shutil.rmtree(run)
    if old_place == "another run's":
        make_run(run, OWNER._replace(run_id="r2"))

    assert repair_run(moved).recovered == (0 if old_place == "an original" else 1)
    if old_place == "an original":
        assert repair_run(run).recovered == 1


def test_a_copy_that_lacks_what_comes_before_a_journal_does_not_get_it(tmp_path, shared):
    run = make_run(tmp_path / "run")
    leave_journal(run, line(5), place=shared)
    run.rename(tmp_path / "earlier")

    assert repair_run(tmp_path / "earlier").recovered == 0


def test_the_ranks_of_a_run_get_what_is_theirs(tmp_path, shared):
    run = make_run(tmp_path / "run")
    (run / "ranks").mkdir()
    for rank in range(3):
        leave_journal(run, line(rank + 1, rank=rank), owner=OWNER._replace(rank=rank), place=shared)
    moved = run.rename(tmp_path / "moved")

    assert repair_run(moved).recovered == 1, "those of the others begin after what their files have"
    for rank in (1, 2):
        (moved / "ranks" / f"{rank:05d}.jsonl").write_bytes(line(rank))
    assert repair_run(moved).recovered == 2
    assert (moved / "ranks" / "00002.jsonl").read_bytes() == line(2) + line(3, rank=2)


def test_of_two_sessions_the_earlier_one_is_written_first_wherever_its_journal_is(tmp_path, shared):
    run = make_run(tmp_path / "run", OWNER._replace(session=9, started=1.9e9))
    leave_journal(run, line(1), owner=OWNER._replace(session=1))
    leave_journal(run, line(2), owner=OWNER._replace(session=2), place=shared)

    assert repair_run(run).recovered == 2
    assert seqs(run) == [0, 1, 2]


def test_many_threads_that_recover_the_same_runs_write_each_record_once(tmp_path, shared):
    runs = [make_run(tmp_path / f"run{number}", OWNER._replace(run_id=f"r{number}")) for number in range(6)]
    for number, run in enumerate(runs):
        leave_journal(
            run, *[line(seq) for seq in range(1, 50)], owner=OWNER._replace(run_id=f"r{number}"), place=shared
        )
    begin = threading.Barrier(6)

    def recover(near):
        begin.wait()
        while paths := list(journals_in(shared)):
            for path in paths:
                recover_killed(path, near)

    threads = [threading.Thread(target=recover, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [seqs(run) for run in runs] == [list(range(50))] * 6


def test_a_run_that_is_being_written_is_left_alone_though_no_journal_of_it_is_found(tmp_path, shared):
    run = make_run(tmp_path / "run")
    writer = os.open(run / "metrics.jsonl", os.O_RDWR)
    assert try_lock(writer)
    while_it_is_written = repair_run(run)
    leave_journal(run, line(1), place=shared)
    in_vain = drain_journal(*journals_of(run)[0])
    os.close(writer)

    assert while_it_is_written.in_use
    assert in_vain is None
    assert repair_run(run).recovered == 1


def test_a_run_in_another_log_directory_is_left_to_its_own(tmp_path, shared):
    (tmp_path / "other").mkdir()
    run, elsewhere = make_run(tmp_path / "run"), make_run(tmp_path / "other" / "run")
    path = leave_journal(elsewhere, line(1), place=shared)
    recover_killed(path, run)

    assert path.exists()
    assert seqs(elsewhere) == [0]
