"""The ledger of a file is added up a slice at a time, each record once, and says the same as over all of it at once."""

from __future__ import annotations

import pytest

from tests.made_runs import write_run
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.reader import read_from
from toolkit.telemetry.runs import record_source
from toolkit.telemetry.runs.findings.run_analysis import RunLedger
from toolkit.telemetry.runs.record_source import FileSource
from toolkit.telemetry.timing.ledger import LedgerBuilder


@pytest.fixture(autouse=True)
def _short_slices(monkeypatch):
    """Have a file of some hundred records examined in parts, too."""
    monkeypatch.setattr(record_source, "LONGEST", 100)


def records(count=600, *, session=1, first=1, training=0.4, data_wait=0.1):
    """Return the records of one session that tells where each half second went."""
    found = [{"event": "start", "seq": 0, "session": session, "time": 1.7e9, "elapsed": 0.0}]
    for step in range(first, first + count):
        elapsed = (step - first + 1) * 0.5
        found.append(
            {
                "event": "step",
                "seq": step,
                "session": session,
                "time": 1.7e9 + elapsed,
                "elapsed": elapsed,
                "global_step": step,
                "train_loss": 1.0,
                "ledger/training": training,
                "ledger/data_wait": data_wait,
            }
        )
    return found


def ledger_of(folder):
    return RunLedger(FileSource(folder / METRICS_JSONL))


def until_done(ledger):
    for looks in range(1, 10_000):
        spent = ledger.advance(0.0)
        if spent.fraction >= 1.0:
            return looks, spent.ledger
    raise AssertionError("it never ends")


def test_it_says_the_same_as_a_book_of_all_records_at_once(tmp_path):
    folder = write_run(tmp_path, "r", records())
    book = LedgerBuilder()
    book.take(read_from(folder / METRICS_JSONL).records)

    looks, ledger = until_done(ledger_of(folder))

    assert looks > 3
    assert ledger == book.ledger()
    assert ledger.goodput == pytest.approx(0.8, abs=0.01)


def test_a_part_is_a_ledger_of_what_was_read_and_says_how_much_that_is(tmp_path):
    ledger = ledger_of(write_run(tmp_path, "r", records()))

    parts = [ledger.advance(0.0)]
    while parts[-1].fraction < 1.0:
        parts.append(ledger.advance(0.0))

    assert [spent.fraction for spent in parts] == sorted(spent.fraction for spent in parts)
    assert 0.0 < parts[0].fraction < 0.5
    assert 0.0 < parts[0].ledger.wall_s < parts[-1].ledger.wall_s


def test_who_comes_while_another_is_at_it_gets_what_was_known_before(tmp_path):
    ledger = ledger_of(write_run(tmp_path, "r", records()))

    with ledger._busy:
        assert ledger.advance(60.0).fraction == 0.0, "so that a page comes back"

    assert ledger.advance(60.0).fraction == 1.0
