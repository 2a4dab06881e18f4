"""What is shipped comes back byte for byte, from every engine, whatever is in the files and however it was cut."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from unittest import mock

import pytest

from tests.fleet.shipped_runs import (
    BROKEN,
    append,
    begin_shipping,
    drop_parts,
    engine_bytes,
    engine_points,
    file_points,
    id_of,
    log_run,
    make_due,
    make_run,
    newest_bytes,
    pull,
    record_bytes,
    say_labels,
    ship,
    step_line,
    write,
)
from toolkit.telemetry.core.ranks import node_name
from toolkit.telemetry.fleet import tail as tail_module
from toolkit.telemetry.fleet.engine import Engine, EngineError, quote
from toolkit.telemetry.fleet.shipping import sender as sender_module
from toolkit.telemetry.fleet.stores import StoreError
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.table.csv_table import build_table, table_form


def test_a_run_of_the_logger_comes_back_byte_for_byte(engine, ask, logs, tmp_path):
    folder = log_run(logs, "resumed")
    for rank in (1, 2, 17):
        append(folder, range(25), rank=rank, sec_per_step=0.5)
    for line in BROKEN:
        write(folder, line + b"\n")
    write(folder, b"x" * 2_500_000 + b"\n")
    append(folder, range(100, 110))
    write(folder, b'{"event":"step","half a line')
    (folder / "labels.json").write_bytes(b'{"display_name": "mine", "tags": ["a"]}\n')
    ship(engine, logs)

    pulled = pull(ask, id_of(folder), tmp_path / "back")

    assert record_bytes(pulled.folder) == record_bytes(folder)
    for name in ("run.json", "labels.json"):
        assert (pulled.folder / name).read_bytes() == (folder / name).read_bytes()
    build_table(folder / "metrics.jsonl", tmp_path / "table.csv", form=table_form(folder))
    assert (pulled.folder / "metrics.csv").read_bytes() == (tmp_path / "table.csv").read_bytes()
    assert engine_points(ask, id_of(folder)) == file_points(folder / "metrics.jsonl")
    lines, bad_lines = ask.rows(
        "SELECT uniqExact(at), uniqExactIf(at, event = '' AND line != '') FROM records "
        f"WHERE run_id = {quote(id_of(folder))} AND rank = 0"
    )[0]
    assert lines == record_bytes(folder)["metrics.jsonl"].count(b"\n")
    assert bad_lines == 8, "all broken lines but the empty one and the one with bare words, and the long line"


HOSTILE = (
    "it's",
    'say "hi"',
    "back\\slash",
    "\\'",
    "\\\\'",
    "'; DROP TABLE records; --",
    "' OR 1=1 --",
    "`tick`",
    "new\nline",
    "tab\tand\rreturn",
    "nul\x00inside",
    "{x:String}",
    "%s %d %(x)s",
    "/* comment",
    "-- dash",
    "ünï cødé 🏃",
    "\u2028separator",
    "\\x41\\n",
    "FORMAT Null",
    "a" * 5000,
    "$1 ${x} \\0",
    "../../etc/passwd",
)


def test_hostile_names_are_only_data(engine, ask, logs, tmp_path):
    runs = []
    for number, name in enumerate(HOSTILE):
        folder = make_run(logs, f"hostile-{number}", 3, run_id=f"{name}-{os.urandom(4).hex()}", project=name)
        append(folder, [3], **{name: 1.5})
        write(folder, step_line(4).replace(b'"step"', _as_json(name)))
        runs.append(folder)
    ship(engine, logs)

    for number, (folder, name) in enumerate(zip(runs, HOSTILE, strict=True)):
        run_id = id_of(folder)
        assert newest_bytes(ask, run_id) == record_bytes(folder)["metrics.jsonl"]
        assert name in [point[0] for point in engine_points(ask, run_id)]
        where = f"run_id = {quote(run_id)}"
        assert ask.rows(f"SELECT event FROM records WHERE {where} ORDER BY at DESC LIMIT 1") == [(name,)]
        assert ask.rows(f"SELECT project FROM runs WHERE {where}") == [(name,)]
        if number % 6 == 5:
            assert pull(ask, run_id, tmp_path / "back").done.files == 2
    assert {path.parent for path in (tmp_path / "back").iterdir()} == {tmp_path / "back"}
    ship(engine, logs)
    assert ask.query("SELECT 1") == b"1\n"


def test_lines_that_are_sent_again_and_cut_elsewhere_replace_themselves(engine, ask, logs, monkeypatch):
    folder = log_run(logs, "again", steps=60)
    run_id = id_of(folder)
    for rows_in_a_batch, batches in ((7, 3), (11, 2), (3, 1)):
        monkeypatch.setattr(tail_module, "BATCH_ROWS", rows_in_a_batch)
        unlucky = begin_shipping(engine, logs)
        # As a process that is killed after the data, several times: the commit never comes.
        with mock.patch.object(sender_module, "insert_commits"):
            for _ in range(batches):
                unlucky.ship_round()
    ship(engine, logs)

    assert engine_bytes(ask, run_id) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}
    assert engine_points(ask, run_id) == file_points(folder / "metrics.jsonl")
    assert ship(engine, logs).verify() == []


@pytest.mark.parametrize("seen", ["by the shipper", "by another shipper"])
def test_a_truncated_or_replaced_file_is_a_new_generation(engine, ask, logs, seen):
    folder = make_run(logs, f"replaced {seen}", 50)
    run_id = id_of(folder)
    shipper = ship(engine, logs)

    def ship_again() -> None:
        if seen == "by the shipper":
            make_due(shipper)
            shipper.ship_all()
        else:
            ship(engine, logs)

    changes = [
        lambda path: os.truncate(path, 1000),
        lambda path: path.write_bytes(b"".join(step_line(step, other=1.0) for step in range(80))),
        replace_by_same_size,
        lambda path: os.truncate(path, 100),
    ]
    for gen, change in enumerate(changes, 2):
        change(folder / "metrics.jsonl")
        ship_again()
        assert newest_bytes(ask, run_id) == record_bytes(folder)["metrics.jsonl"]
        assert engine_points(ask, run_id, gen=gen) == file_points(folder / "metrics.jsonl")

    why = ask.rows(f"SELECT why FROM commits WHERE run_id = {quote(run_id)} AND gen = 4")
    assert why == [("the file was truncated or replaced",)]


def replace_by_same_size(path):
    data = path.read_bytes()
    half = path.with_name("half")
    half.write_bytes(data.replace(b'"lr":0.0001', b'"lr":0.0002'))
    os.replace(half, path)


def test_a_copied_or_renamed_folder_goes_on_where_it_was(engine, ask, logs, tmp_path):
    folder = make_run(logs, "moves", 30)
    ship(engine, logs)
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "copied")
    append(copy, range(30, 35))

    shipper = ship(engine, tmp_path / "elsewhere")

    assert shipper.totals.lines == 5
    assert engine_bytes(ask, id_of(folder)) == {(0, 1): record_bytes(copy)["metrics.jsonl"]}


def test_shipping_once_ends_while_a_run_is_logging(engine, ask, logs):
    folder = make_run(logs, "live", 5)
    is_over = threading.Event()

    def go_on_logging():
        for step in itertools.count(5):
            if is_over.wait(0.002):
                return
            append(folder, [step])

    writer = threading.Thread(target=go_on_logging)
    writer.start()
    try:
        shipper = ship(engine, logs)
    finally:
        is_over.set()
        writer.join()

    assert shipper.totals.lines >= 5
    assert record_bytes(folder)["metrics.jsonl"].startswith(newest_bytes(ask, id_of(folder)))


def test_a_status_and_labels_that_were_not_taken_are_sent_again(engine, ask, logs):
    folder = make_run(logs, "ended", 3)
    (folder / "labels.json").write_bytes(b'{"notes":"kept"}')
    shipper = begin_shipping(engine, logs)
    with mock.patch.object(Engine, "insert", side_effect=EngineError("full")):
        for _ in range(2):
            shipper.ship_round()
    shipper.sender._backoff.succeeded()
    shipper.ship_all()

    run = quote(id_of(folder))
    assert ask.rows(f"SELECT argMax(status, version) FROM runs WHERE run_id = {run}") == [("finished",)]
    assert ask.rows(f"SELECT argMax(labels, version) FROM labels WHERE run_id = {run}") == [
        ('{"notes":"kept"}',)
    ]


def test_two_shippers_of_one_folder_do_no_harm(engine, ask, logs):
    folder = make_run(logs, "shared", 5)
    both = [begin_shipping(engine, logs, node=f"node{number}") for number in (1, 2)]
    for step in range(5, 30, 5):
        append(folder, range(step, step + 5), **{f"m{step}": 1.0})
        both[step % 2].ship_round()
        append(folder, [step + 1000])
        for shipper in reversed(both):
            make_due(shipper)
            shipper.ship_round()

    for shipper in both:
        shipper.ship_all()

    assert engine_bytes(ask, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}
    assert engine_points(ask, id_of(folder)) == file_points(folder / "metrics.jsonl")


def test_lines_sent_before_a_kill_that_are_no_longer_in_the_file_stay_in_their_generation(engine, ask, logs):
    folder = make_run(logs, "cut back", 10)
    ship(engine, logs)
    end = (folder / "metrics.jsonl").stat().st_size
    append(folder, range(10, 20), lost=1.0)
    killed = begin_shipping(engine, logs)
    with mock.patch.object(sender_module, "insert_commits"):
        killed.ship_round()
    # A power cut took what had not reached the disk, and the run was resumed.
    os.truncate(folder / "metrics.jsonl", end)
    append(folder, range(10, 16), other=2.0)

    ship(engine, logs)

    assert newest_bytes(ask, id_of(folder)) == record_bytes(folder)["metrics.jsonl"]
    assert engine_points(ask, id_of(folder), gen=2) == file_points(folder / "metrics.jsonl")


def test_verify_sends_dropped_parts_again(engine, ask, logs, tmp_path):
    folder = make_run(logs, "dropped", 200)
    append(folder, range(20), rank=1)
    shipper = ship(engine, logs)
    expected = totals(ask, id_of(folder))
    for table in ("records", "points", "commits"):
        drop_parts(engine, table)
        assert totals(ask, id_of(folder)) != expected, table

        if table == "commits":
            # Without commits a new shipper sends everything again, which replaces itself.
            shipper = ship(engine, logs)
        repaired = shipper.verify()

        assert totals(ask, id_of(folder)) == expected, table
        assert len(repaired) == (0 if table == "commits" else 2), table
    assert shipper.verify() == []
    assert record_bytes(pull(ask, id_of(folder), tmp_path / "back").folder) == record_bytes(folder)


def totals(connection, run_id):
    where = f"WHERE run_id = {quote(run_id)}"
    return [
        connection.query(sql.format(where=where))
        for sql in (
            "SELECT rank, gen, at, line FROM records {where} ORDER BY rank, gen, at LIMIT 1 BY rank, gen, at",
            "SELECT rank, metric, at, value FROM points FINAL {where} ORDER BY rank, metric, at",
            "SELECT rank, max(end) FROM commits {where} GROUP BY rank ORDER BY rank",
        )
    ]


def test_of_a_run_with_very_many_metrics_all_become_points(engine, ask, logs):
    folder = make_run(logs, "explosion", 1)
    for step in range(12):
        append(folder, [step], **{f"m{step}_{number}": 1.0 for number in range(500)})
        if step == 7:
            ship(engine, logs)
    ship(engine, logs)

    names = ask.rows(f"SELECT uniqExact(metric) FROM points WHERE run_id = {quote(id_of(folder))}")
    assert names == [(6002,)]
    assert newest_bytes(ask, id_of(folder)) == record_bytes(folder)["metrics.jsonl"]
    assert ship(engine, logs).verify() == []


def test_the_node_works_out_the_status_and_ships_it(engine, ask, logs):
    log_run(logs, "ended")
    killed = make_run(logs, "killed", 5)
    text = (killed / "run.json").read_text().replace('"finished"', '"running"')
    (killed / "run.json").write_text(text.replace('"pid": 1', '"pid": 4194303'))
    ship(engine, logs)

    rows = ask.rows(
        "SELECT argMax(name, version) AS called, argMax(status, version), argMax(sure, version), "
        "length(argMax(trend, version)), argMax(behind, version) FROM runs "
        f"WHERE node = {quote(node_name())} AND folder LIKE {quote(f'{logs}/%')} "
        "GROUP BY run_id ORDER BY called",
    )

    assert rows == [
        ("ended", "finished", 1, 27, 0),
        ("killed", "lost", 1, 5, 0),
    ]


def test_a_run_that_was_deleted_on_a_page_is_left_alone(engine, ask, logs):
    folder = make_run(logs, "deleted", 5)
    run_id = id_of(folder)
    ship(engine, logs)
    say_labels(ask, folder, deleted=True)
    append(folder, range(5, 9))

    assert ship(engine, logs).totals.lines == 0
    assert engine_bytes(ask, run_id)[0, 1].count(b"\n") == 5


def test_a_part_of_a_run_on_another_node_adds_its_ranks_and_no_run(engine, ask, logs, tmp_path):
    folder = make_run(logs, "job", 10)
    part = make_run(tmp_path / "node2", "job@node2", 0, run_id=id_of(folder), other={"part_of": "node1"})
    append(part, range(7), rank=8)
    (part / "metrics.jsonl").unlink()
    ship(engine, tmp_path / "node2", node="node2")
    ship(engine, logs, node="node1")

    assert ask.rows(f"SELECT node FROM runs WHERE run_id = {quote(id_of(folder))}") == [("node1",)]
    pulled = pull(ask, id_of(folder), tmp_path / "back")
    assert record_bytes(pulled.folder) == {
        "metrics.jsonl": record_bytes(folder)["metrics.jsonl"],
        "00008.jsonl": rank_file(part, 8).read_bytes(),
    }


def test_of_a_rank_that_moved_to_another_node_the_newer_file_counts(engine, ask, logs, tmp_path):
    folder = make_run(logs, "moved", 3)
    parts = []
    for node, steps in (("node1", range(7)), ("node2", range(5, 9))):
        part = make_run(tmp_path / node, f"moved@{node}", 0, run_id=id_of(folder), other={"part_of": "node0"})
        append(part, steps, rank=8, **{node: 1.0})
        (part / "metrics.jsonl").unlink()
        parts.append(part)
        ship(engine, tmp_path / node, node=node)
    said = []
    ship(engine, tmp_path / "node1", node="node1", say=said.append)

    assert newest_bytes(ask, id_of(folder), 8) == rank_file(parts[1], 8).read_bytes()
    assert said == [
        f"{rank_file(parts[0], 8)}: it is not shipped: node node2 has shipped a newer file of rank 8"
    ]


def test_pull_refuses_in_one_sentence(engine, ask, logs, tmp_path):
    for name in ("twice", "2"):
        make_run(logs / name, "twice", 2)
    ship(engine, logs / "twice", logs / "2")

    with pytest.raises(StoreError, match="no run with the id or name nothing"):
        pull(ask, "nothing", tmp_path)
    with pytest.raises(StoreError, match="2 runs are called twice; name one by its id: "):
        pull(ask, "twice", tmp_path)
    refused = pull(ask, id_of(logs / "2" / "twice"), logs / "twice")
    assert refused.said == [f"twice is not copied: another run has the name twice in {logs / 'twice'}"]


def _as_json(text):
    import orjson

    return orjson.dumps(text)
