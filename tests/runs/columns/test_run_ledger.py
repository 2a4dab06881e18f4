"""The ledger of a file is added up a slice at a time, each record once, and says the same as over all of it at once."""

from __future__ import annotations

import os

import pytest

from tests.dashboard.run_folders import append, write_run
from toolkit.runfolder.layout import METRICS_JSONL
from toolkit.runfolder.reader import read_from
from toolkit.runs import record_source
from toolkit.runs.findings import run_analysis
from toolkit.runs.findings.run_analysis import RunLedger
from toolkit.runs.record_source import FileSource
from toolkit.timing.ledger import LedgerBuilder


@pytest.fixture(autouse=True)
def _short_slices(monkeypatch):
    """Have a file of some hundred records examined in parts, too."""
    monkeypatch.setattr(record_source, "LONGEST", 100)


@pytest.fixture
def taken(monkeypatch):
    """Count the records that are put into a book."""
    seen = []

    class Counting(LedgerBuilder):
        def take(self, records):
            records = list(records)
            seen.extend(records)
            return super().take(records)

    monkeypatch.setattr(run_analysis, "LedgerBuilder", Counting)
    return seen


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


def test_each_record_is_taken_once_however_often_the_file_grows(tmp_path, taken):
    every = records()
    folder = write_run(tmp_path, "r", every[:100])
    ledger = ledger_of(folder)
    ledger.advance(60.0)
    for start in range(100, len(every), 150):
        append(folder, every[start : start + 150])

        assert ledger.advance(60.0).fraction == 1.0
    number = len(taken)
    ledger.advance(60.0)

    assert len(taken) == number == len(every)


def test_another_file_of_that_name_begins_from_scratch(tmp_path):
    folder = write_run(tmp_path, "r", records(training=0.1))
    ledger = ledger_of(folder)
    until_done(ledger)

    other = write_run(tmp_path, "other", records(count=300, training=0.5, data_wait=0.0))
    os.replace(other / METRICS_JSONL, folder / METRICS_JSONL)
    _, spent = until_done(ledger)

    assert spent.wall_s == pytest.approx(150.0)
    assert spent.goodput == pytest.approx(1.0)


def test_a_half_written_line_and_an_invalid_one_are_skipped(tmp_path):
    folder = write_run(tmp_path, "r", records(count=50))
    with (folder / METRICS_JSONL).open("ab") as file:
        file.write(b'\xff no JSON\n{"event":"step",')

    spent = ledger_of(folder).advance(60.0)

    assert spent.fraction == 1.0
    assert spent.ledger.wall_s == pytest.approx(25.0)


def test_a_file_that_is_not_there_holds_no_time(tmp_path):
    spent = RunLedger(FileSource(tmp_path / "none.jsonl")).advance(1.0)

    assert spent.fraction == 1.0
    assert spent.ledger.wall_s == 0.0


def test_who_comes_while_another_is_at_it_gets_what_was_known_before(tmp_path):
    ledger = ledger_of(write_run(tmp_path, "r", records()))

    with ledger._busy:
        assert ledger.advance(60.0).fraction == 0.0, "so that a page comes back"

    assert ledger.advance(60.0).fraction == 1.0
