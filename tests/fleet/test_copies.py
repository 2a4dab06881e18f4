"""Several folders of one run, on one node or on two: which of them is shipped, and which says what the run does."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from unittest import mock

import pytest

from tests.fleet.shipped_runs import (
    append,
    begin_shipping,
    engine_points,
    file_points,
    id_of,
    make_due,
    make_run,
    newest_bytes,
    record_bytes,
    say_labels,
    ship,
)
from tests.lengths import in_make_faults
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.fleet.schema import require_tables, set_up
from toolkit.telemetry.fleet.shipping import sender
from toolkit.telemetry.fleet.shipping.shipper import Shipper
from toolkit.telemetry.fleet.shipping.verify import lags_of
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.process import host_name


def look_now(*shippers: Shipper) -> None:
    for one in shippers:
        make_due(one)
        one.ship_round()
        one.sender.report(all_runs=True)


def started(engine, place, node: str, say=None) -> Shipper:
    """Return the shipper of the node that trains what is in `place`."""
    for path in place.glob("*/run.json"):
        path.write_text(path.read_text().replace(f'"host": "{host_name()}"', f'"host": "{node}"'))
    return begin_shipping(engine, place, node=node, say=say)


@pytest.mark.parametrize(
    ("names", "is_restarted"),
    [
        (("node1", "node2"), False),
        # One name looks like a file that is replaced again and again, if the shippers are restarted too.
        pytest.param(("same", "same"), False, marks=in_make_faults),
        pytest.param(("node1", "node2"), True, marks=in_make_faults),
    ],
)
def test_two_live_copies_of_a_run_do_not_take_turns_for_ever(
    engine, ask, logs, tmp_path, names, is_restarted
):
    one = make_run(logs, "copied", 3)
    other = shutil.copytree(one, tmp_path / "elsewhere" / "copied")
    said: list[str] = []

    def both():
        return [
            started(engine, folder.parent, node, said.append)
            for folder, node in zip((one, other), names, strict=True)
        ]

    shippers = both()
    writers = []
    for step in range(10, 22, 2):
        append(one, [step], a=1.0)
        append(other, [step + 1], b=1.0)
        if is_restarted:
            shippers = both()
        look_now(*shippers)
        writers += zip(
            ask.rows(f"SELECT argMax(folder, version) FROM runs WHERE run_id = {run(one)}"),
            ask.rows(f"SELECT max(gen) FROM commits WHERE run_id = {run(one)}"),
            strict=True,
        )

    assert len(set(writers[-2:])) == 1
    (kept,), (gen,) = writers[-1]
    assert gen <= 2 * sender.MOST_MOVES + 2
    winner = one if kept == str(one) else other
    assert newest_bytes(ask, id_of(one)) == record_bytes(winner)["metrics.jsonl"]
    assert engine_points(ask, id_of(one), gen=gen) == file_points(winner / "metrics.jsonl")
    assert [each.sender.behind for each in shippers] == [0, 0]
    assert any("is not shipped: node" in line and "a newer file of rank 0" in line for line in said)


def run(folder) -> str:
    return quote(id_of(folder))


def test_a_later_session_counts_although_the_clock_of_its_node_is_behind(engine, ask, logs, tmp_path):
    one = make_run(logs, "resumed", 9)
    other = shutil.copytree(one, tmp_path / "elsewhere" / "resumed")
    append(one, range(50, 60))
    ship(engine, logs, node="node1")
    append(other, [9], session=2, time=5.0)

    ship(engine, other.parent, node="node2")
    said = []
    ship(engine, logs, node="node1", say=said.append)

    assert newest_bytes(ask, id_of(one)) == record_bytes(other)["metrics.jsonl"]
    assert ask.rows(f"SELECT argMax(node, version) FROM runs WHERE run_id = {run(one)}") == [("node2",)]
    assert len(said) == 1


def test_an_engine_that_was_emptied_is_filled_again_while_the_shipper_runs(engine, logs):
    address = engine.address("emptied")
    set_up(address)
    ask = Engine(address)
    folder = make_run(logs, "kept on the node", 5)
    one = begin_shipping(address, logs)
    look_now(one)
    for table in ("records", "points", "commits"):
        ask.query(f"TRUNCATE TABLE {table}")
    append(folder, range(5, 8))

    look_now(one)
    found = newest_bytes(ask, id_of(folder))
    ask.close()

    assert found == record_bytes(folder)["metrics.jsonl"]


def test_a_run_with_a_copy_of_one_of_its_ranks_is_listed_all_the_same(engine, ask, logs, tmp_path):
    folder = make_run(logs, "whole", 4)
    append(folder, range(4), rank=8)
    part = make_run(logs, "whole@b", 0, run_id=id_of(folder), other={"part_of": "node1"})
    (part / "metrics.jsonl").unlink()
    append(part, range(4), rank=8)
    rank_file(folder, 8).unlink()

    one = started(engine, logs, "node1")
    look_now(one)
    append(folder, range(4), rank=8)
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"finished"', '"failed"'))
    look_now(one)

    assert one.runs[folder].copies == {8}
    assert ask.rows(f"SELECT argMax(status, version) FROM runs WHERE run_id = {run(folder)}") == [("failed",)]


@pytest.mark.parametrize("why", ["its name", "its owner"])
def test_a_folder_that_only_says_it_is_a_part_is_not_shipped(engine, ask, logs, why):
    folder = make_run(logs, "job", 4)
    append(folder, range(4), rank=8)
    name = "other@b" if why == "its name" else "job@b"
    part = make_run(logs, name, 0, run_id=id_of(folder), other={"part_of": "node1"})
    (part / "metrics.jsonl").unlink()
    append(part, range(9), rank=8)
    append(part, range(9), rank=9)
    if why == "its owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder to another user")
        os.chown(part, 12345, -1)
    said = []

    ship(engine, logs, say=said.append)

    assert said == [f"{part} is not shipped: it is not a part of the run whose id it has"]
    ranks = ask.rows(f"SELECT rank, uniqExact(at) FROM records WHERE run_id = {run(folder)} GROUP BY rank")
    assert sorted(ranks) == [(0, 4), (8, 4)]


def test_what_is_rightly_left_alone_is_not_behind(engine, ask, logs, tmp_path):
    deleted, old, moved = (make_run(logs, name, 9) for name in ("deleted", "old", "moved"))
    whole = make_run(logs, "shipped", 9)
    shutil.copytree(whole, logs / "z-copy")
    append(logs / "z-copy", range(9, 12))
    newer = shutil.copytree(moved, tmp_path / "elsewhere" / "moved")
    say_labels(ask, deleted, deleted=True)
    append(newer, [1], session=2)
    append(moved, [9], other=1.0)
    ship(engine, newer.parent, node="node2")
    text = (old / "run.json").read_text()
    (old / "run.json").write_text(text.replace("1790000000.0", str(time.time() - 100 * 86_400)))
    said = []
    one = started(engine, logs, "node1", said.append)
    one.sender.node.keep_days = 90
    look_now(one)

    lags = {lag.path.parent.name: lag.bytes for lag in lags_of(ask, [logs], keep_days=90)}

    assert any("is a copy of" in line for line in said)
    assert one.sender.behind == 0
    assert sum(lags.values()) == 0
    assert lags.keys() <= {"shipped", "z-copy"}


def test_lines_without_a_commit_are_all_compared(engine, ask, logs):
    folder = make_run(logs, "many", 4)
    end = (folder / "metrics.jsonl").stat().st_size
    append(folder, range(4, 30))
    killed = started(engine, logs, "node1")
    with (
        mock.patch.object(sender, "insert_commits", side_effect=KeyboardInterrupt),
        suppress(KeyboardInterrupt),
    ):
        killed.ship_round()
    data = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(data[:-20] + b"1" + data[-19:])

    ship(engine, logs, node="node1")

    assert newest_bytes(ask, id_of(folder)) == record_bytes(folder)["metrics.jsonl"]
    assert ask.rows(f"SELECT gen FROM commits WHERE run_id = {run(folder)}") == [(2,)]
    assert end < len(data)


def test_keep_days_is_for_every_table_and_can_be_changed(engine):
    address = engine.address("kept")
    tables = (
        "SELECT create_table_query FROM system.tables WHERE database = 'kept' AND engine LIKE '%MergeTree'"
    )
    for given, days in ((30, 30), (None, 30), (0, 0)):
        set_up(address, keep_days=given)
        ask = Engine(address)
        assert require_tables(ask).keep_days == days
        made = [sql for (sql,) in ask.rows(tables)]
        assert len(made) > 7
        for sql in made:
            assert (f"toIntervalDay({days})" in sql) == bool(days), sql
            assert ("TTL" in sql) == bool(days), sql
        ask.close()
