"""What the shipper compares with the engine by itself, in slices."""

from __future__ import annotations

from unittest import mock

import pytest

from tests.fleet.shipped_runs import (
    append,
    begin_shipping,
    drop_parts,
    id_of,
    make_run,
    newest_bytes,
    record_bytes,
    ship,
)
from tests.waiting import wait_until
from toolkit.telemetry.fleet.engine import EngineError, quote
from toolkit.telemetry.fleet.shipping import sender as sender_module


def test_a_live_run_is_shipped_between_the_slices_of_a_verify(engine, ask, logs, monkeypatch):
    large = make_run(logs, "large", 1)
    append(large, range(1, 60), text="x" * 100_000)
    live = make_run(logs, "live", 1)
    ship(engine, logs)
    monkeypatch.setattr(sender_module, "_VERIFY_AT_ONCE_S", 0.0)
    shipper = begin_shipping(engine, logs)
    shipper.ship_round()
    run = shipper.runs[large]
    run.next_verify = 0.0

    rounds = 0
    while not run.next_verify:
        rounds += 1
        append(live, [rounds])
        shipper.ship_round()
        assert newest_bytes(ask, id_of(live)) == record_bytes(live)["metrics.jsonl"]

    assert rounds > 2


@pytest.mark.parametrize("lost", ["points", "commits", "runs"])
def test_an_ended_run_is_compared_again_and_what_the_engine_has_lost_of_it_is_sent(engine, ask, logs, lost):
    folder = make_run(logs, f"lost {lost}", 50)
    where = f"WHERE run_id = {quote(id_of(folder))}"
    shipper = begin_shipping(engine, logs)
    shipper.ship_all()
    run = shipper.runs[folder]
    shipper.watch.active.clear()
    drop_parts(engine, lost)

    run.next_verify = 0.0
    shipper.watch._last_look = -1e9
    wait_until(lambda: shipper.ship_round() or run.next_verify)
    wait_until(lambda: shipper.ship_round() or (run.report.is_known and not run.behind))

    assert ask.rows(f"SELECT uniqExact(metric, at) FROM points {where}") == [(100,)]
    assert ask.rows(f"SELECT max(end) FROM commits {where}") == [((folder / "metrics.jsonl").stat().st_size,)]
    assert ask.rows(f"SELECT uniqExact(name) FROM runs {where}") == [(1,)]
    assert (
        shipper.totals.recent_error
        == {
            "points": f"{folder / 'metrics.jsonl'}: the engine lacked a part of it, and it is sent again",
            "commits": f"{folder / 'metrics.jsonl'}: the engine had lost how far it was taken; it is shipped again",
            "runs": "",
        }[lost]
    )


def test_a_verify_that_fails_holds_up_neither_lines_nor_runs_of_other_shippers(engine, ask, logs):
    folder = make_run(logs, "too large", 5)
    shipper = begin_shipping(engine, logs)
    shipper.ship_all()
    shipper.runs[folder].next_verify = 0.0
    with mock.patch.object(sender_module, "verify_file", side_effect=EngineError("out of memory")):
        for step in range(5, 8):
            append(folder, [step])
            shipper.ship_round()
            assert newest_bytes(ask, id_of(folder)) == record_bytes(folder)["metrics.jsonl"]

    assert shipper.totals.recent_error == "out of memory"
    assert shipper.sender.claims._not_before == 0.0
