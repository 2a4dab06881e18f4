"""What the shipper compares with the engine by itself: in slices, without reading again what it has sent."""

from __future__ import annotations

from unittest import mock

from tests.fleet.shipped_runs import append, drop_parts, id_of, make_run, newest_bytes, record_bytes, ship
from tests.waiting import wait_until
from toolkit.telemetry.fleet.engine import Engine, EngineError, quote
from toolkit.telemetry.fleet.shipping import sender as sender_module
from toolkit.telemetry.fleet.shipping.shipper import Shipper
from toolkit.telemetry.fleet.tail import RecordTail


def test_a_live_run_is_shipped_between_the_slices_of_a_verify(engine, ask, logs, monkeypatch):
    large = make_run(logs, "large", 1)
    append(large, range(1, 60), text="x" * 100_000)
    live = make_run(logs, "live", 1)
    ship(engine, logs)
    monkeypatch.setattr(sender_module, "_VERIFY_AT_ONCE_S", 0.0)
    shipper = started(engine, logs)
    shipper.ship_round()
    file = make_due(shipper, large)

    rounds = 0
    while not file.verified:
        rounds += 1
        append(live, [rounds])
        shipper.ship_round()
        assert newest_bytes(ask, id_of(live)) == record_bytes(live)["metrics.jsonl"]

    assert rounds > 3


def test_what_a_shipper_sent_is_not_read_again_and_what_the_engine_lost_is_sent_again(engine, ask, logs):
    folder = make_run(logs, "sent", 50)
    run = quote(id_of(folder))
    shipper = started(engine, logs)
    shipper.ship_all()
    file = make_due(shipper, folder)
    with mock.patch.object(RecordTail, "read", side_effect=AssertionError("read again")):
        # A busy machine compares in several rounds.
        wait_until(lambda: shipper.ship_round() or file.verified == file.signature)

    drop_parts(engine, "points")
    make_due(shipper, folder)
    shipper.ship_round()
    assert not shipper.totals.recent_error, "a file that did not change was compared again"

    (folder / "metrics.jsonl").touch()
    shipper.runs[folder].next_look = 0.0
    make_due(shipper, folder)
    wait_until(lambda: shipper.ship_round() or shipper.totals.recent_error)
    assert "the engine lacked a part of it, and it is sent again" in shipper.totals.recent_error
    assert ask.rows(f"SELECT uniqExact(metric, n) FROM points WHERE run_id = {run}", "UInt64") == [(100,)]


def test_a_verify_that_fails_holds_up_neither_lines_nor_runs_of_other_shippers(engine, ask, logs):
    folder = make_run(logs, "too large", 5)
    shipper = started(engine, logs)
    shipper.ship_all()
    make_due(shipper, folder)
    with mock.patch.object(sender_module, "verify_file", side_effect=EngineError("out of memory")):
        for step in range(5, 8):
            append(folder, [step])
            shipper.runs[folder].next_look = 0.0
            shipper.ship_round()
            assert newest_bytes(ask, id_of(folder)) == record_bytes(folder)["metrics.jsonl"]

    assert shipper.totals.recent_error == "out of memory"
    assert shipper.sender.claims._not_before == 0.0


def started(engine, logs) -> Shipper:
    shipper = Shipper(Engine(engine.address()), [logs])
    shipper.start()
    return shipper


def make_due(shipper, folder):
    run = shipper.runs[folder]
    run.next_verify = 0.0
    return run.files[0]
