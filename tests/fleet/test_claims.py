"""Several shippers of one file system: each run is sent by one of them, and by another soon after that one is gone."""

from __future__ import annotations

import itertools

from tests.fleet.requests_to_runs import make_live_run
from tests.fleet.shipped_runs import (
    append,
    begin_shipping,
    claimed_by,
    engine_bytes,
    id_of,
    make_due,
    make_run,
    newest_bytes,
    record_bytes,
)
from toolkit.telemetry.fleet import run_rows
from toolkit.telemetry.fleet.shipping import claims
from toolkit.telemetry.runfolder.process import host_name


def started(engine, logs, *nodes):
    return [begin_shipping(engine, logs, node=node) for node in nodes]


def trained_on(folder, host, before=None):
    path = folder / "run.json"
    path.write_text(path.read_text().replace(before or host_name(), host))


def look_now(shipper):
    make_due(shipper)
    while shipper.ship_round():
        pass


def test_a_run_is_sent_by_the_shipper_of_its_host_and_left_alone_by_the_others(
    engine, ask, logs, monkeypatch
):
    monkeypatch.setattr(claims, "CHECK_S", 0.0)
    folder = make_run(logs, "shared", 5)
    trained_on(folder, "host-a")
    own, other = started(engine, logs, "host-a", "host-b")
    look_now(own)
    look_now(other)
    append(folder, range(5, 9))
    look_now(other)

    assert other.files == []
    assert (other.totals.lines, other.sender.behind) == (0, 0)
    assert claimed_by(ask, folder) == "host-a"
    look_now(own)
    assert newest_bytes(ask, id_of(folder)) == record_bytes(folder)["metrics.jsonl"]

    # As if it had not reported for long.
    monkeypatch.setattr(claims, "DEAD_S", 0.0)
    append(folder, range(9, 12))
    for _ in range(3):
        look_now(other)

    assert claimed_by(ask, folder) == "host-b"
    assert other.totals.lines == 3
    assert engine_bytes(ask, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}


def test_a_live_run_that_its_shipper_has_given_up_is_taken_although_the_node_reports_others(
    engine, ask, logs, tmp_path, monkeypatch
):
    monkeypatch.setattr(claims, "CHECK_S", 0.0)
    monkeypatch.setattr(claims, "_NEW_S", 0.0)
    folder = make_live_run(logs, "of a job")
    trained_on(folder, "host-c")
    (of_a_job,) = started(engine, logs, "host-c")
    look_now(of_a_job)
    # Another job's shipper on the same node.
    make_run(tmp_path / "other", "of another job", 3)
    (next_one,) = started(engine, tmp_path / "other", "host-c")
    (other,) = started(engine, logs, "host-d")
    append(folder, range(3, 6))
    for given_up_s, holder in ((60, "host-c"), (-1, "host-d")):
        monkeypatch.setattr(run_rows, "_GIVEN_UP_S", given_up_s)
        look_now(next_one)
        look_now(other)
        look_now(other)
        assert claimed_by(ask, folder) == holder
    assert newest_bytes(ask, id_of(folder)) == record_bytes(folder)["metrics.jsonl"]


def test_of_two_that_took_a_run_at_once_one_gives_up_and_the_host_takes_it_back(
    engine, ask, logs, monkeypatch
):
    monkeypatch.setattr(claims, "CHECK_S", 0.0)
    folder = make_run(logs, "taken twice", 5)
    trained_on(folder, "host-without-a-shipper")
    one, two = started(engine, logs, "taker-1", "taker-2")
    steps = itertools.count(5)
    for shipper in (one, two):
        shipper.watch.look()
        shipper.sender.send_batch()
    for shipper in (one, two):
        shipper.sender.report()
    for _ in range(2):
        for shipper in (one, two):
            append(folder, [next(steps)])
            look_now(shipper)

    assert [len(one.files), len(two.files)] == [0, 1]
    assert claimed_by(ask, folder) == "taker-2"
    trained_on(folder, "taker-1", "host-without-a-shipper")
    for _ in range(2):
        for shipper in (one, two):
            look_now(shipper)
    assert [len(one.files), len(two.files)] == [1, 0]
    assert engine_bytes(ask, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}
