"""A log is read once as it grows, and whatever lies in its place is reported and never waited for."""

import math
import os
import threading
import time

import numpy as np
import pytest

from tests.made_runs import append, step_record, write_run
from toolkit.telemetry.runfolder import reader
from toolkit.telemetry.runfolder.metrics import MAX_METRICS
from toolkit.telemetry.runs import record_source
from toolkit.telemetry.runs.columns import run_log
from toolkit.telemetry.runs.columns.run_log import RunLog

WAIT_S = 60.0


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path, "r", [step_record(i, train_loss=float(i)) for i in range(10)])


@pytest.fixture
def log(folder):
    return RunLog(folder / "metrics.jsonl", None)


def losses(log):
    series = log.series("train_loss", "step", None, 10_000)
    return [value for segment in series.segments for value in segment.y.tolist()]


# ---------------------------------------------------------------- growing


def test_only_what_was_appended_is_read(log, folder, monkeypatch):
    append(folder, [step_record(i, train_loss=1.0, note="x" * 500) for i in range(10, 2000)])
    log.refresh(WAIT_S)
    taken = []
    pread = os.pread

    def counted(descriptor, length, offset):
        data = pread(descriptor, length, offset)
        taken.append(len(data))
        return data

    monkeypatch.setattr(reader.os, "pread", counted)
    log.refresh(WAIT_S)
    nothing_new = sum(taken)
    taken.clear()
    append(folder, [step_record(2000, train_loss=5.0)])
    log.refresh(WAIT_S)

    # The head of the file and one byte before the place are looked at, to see whether it still is the same file.
    assert nothing_new < 600
    assert sum(taken) < 900
    assert losses(log)[-1] == 5.0
    assert len(losses(log)) == 2001


def test_a_replaced_log_that_is_larger_than_a_block_is_read_to_its_end(log, folder, monkeypatch):
    monkeypatch.setattr(run_log, "_BLOCK_BYTES", 1024 * 1024)
    log.refresh(WAIT_S)
    log.path.unlink()
    append(folder, [step_record(i, train_loss=float(i), note="x" * 1000) for i in range(3000)])

    health = log.refresh(WAIT_S)

    assert health.bytes_read == log.path.stat().st_size
    assert len(losses(log)) == 3000


def test_a_flood_of_names_is_counted_and_does_not_fill_the_memory(log, folder):
    append(
        folder,
        [step_record(i, **{f"m{i * 1000 + n}": 1.0 for n in range(1000)}) for i in range(10, 17)],
    )

    health = log.refresh(WAIT_S)

    assert len(log.metrics()) == MAX_METRICS
    assert (
        health.problem == f"{7000 + 1 - MAX_METRICS:,} or more metrics beyond the first 5,000 are not shown"
    )
    assert health.records == 17


# ---------------------------------------------------------------- another file of the same name


def test_a_log_that_vanishes_is_a_problem_until_it_is_back(log, folder):
    log.refresh(WAIT_S)
    data = log.path.read_bytes()
    log.path.unlink()
    gone = log.refresh(WAIT_S)
    while_gone = losses(log)
    log.path.write_bytes(data)
    back = log.refresh(WAIT_S)

    assert "No such file" in gone.problem
    assert len(while_gone) == 10
    assert back.problem is None
    assert len(losses(log)) == 10


# ---------------------------------------------------------------- answering


def test_recent_values_and_means(log, folder):
    log.refresh(WAIT_S)
    append(folder, [step_record(10, train_loss=math.nan)])
    log.refresh(WAIT_S)

    np.testing.assert_array_equal(log.recent("train_loss", 3), [8.0, 9.0, math.nan])
    assert log.recent("train_loss", 0).tolist() == []
    assert log.recent("nope", 3).tolist() == []
    assert log.means("train_loss", 5).tolist() == [1.5, 5.5, 8.5]
    np.testing.assert_array_equal(log.means("train_loss", 100), [*(float(i) for i in range(10)), math.nan])
    assert log.means("nope", 5).tolist() == []


def test_a_table_keeps_rows_apart_from_values_that_are_missing(log, folder):
    append(folder, [{"event": "system", "session": 1, "gpu": 50.0}, step_record(10, train_loss=math.nan)])
    log.refresh(WAIT_S)

    table = log.table(None)
    cells = log.table(["train_loss", "gpu", "nope"], (1, 12))

    assert {len(column) for column in table.values()} == {12}
    assert table["global_step"].tolist() == [*range(10), 9, 10]
    assert cells["train_loss"].mask.tolist() == [False] * 9 + [True, False]
    assert (cells["gpu"].count(), len(cells["gpu"]), cells["gpu"][9]) == (1, 11, 50.0)
    assert cells["global_step"].tolist() == [*range(1, 10), 9, 10]
    assert "nope" not in cells
    assert list(log.table(["gpu", "nope"])) == ["global_step", "time", "session", "gpu"]


def test_events_come_newest_first_and_only_those_asked_for(log, folder):
    append(folder, [{"event": "checkpoint", "number": i} for i in range(5)])
    append(folder, [{"event": "end", "loss": math.nan}])
    log.refresh(WAIT_S)

    assert [record["event"] for record in log.events(None, 3)] == ["end", "checkpoint", "checkpoint"]
    assert [record["number"] for record in log.events(["checkpoint"], 2)] == [4, 3]
    both = log.events((kind for kind in ("end", "checkpoint")), 10)
    assert len(both) == 6
    assert math.isnan(both[0]["loss"])
    assert log.events(["nope"], 5) == []
    assert log.counts() == {"step": 10, "with metrics": 10, "checkpoint": 5, "end": 1}


# ---------------------------------------------------------------- several at once


def test_many_threads_that_open_and_read_the_same_log_see_each_record_once(folder, monkeypatch):
    monkeypatch.setattr(run_log, "_BLOCK_BYTES", 64 * 1024)
    log = RunLog(folder / "metrics.jsonl", None)
    total, wrong = 4000, []
    writing = threading.Event()

    def write():
        for first in range(10, total, 200):
            append(
                folder, [step_record(i, train_loss=float(i)) for i in range(first, min(total, first + 200))]
            )
        writing.set()

    def look():
        while not writing.is_set():
            log.refresh(1.0)
            seen = losses(log)
            log.metrics()
            log.table(["train_loss"])
            log.health()
            if seen != [float(i) for i in range(len(seen))]:
                wrong.append(seen)

    threads = [threading.Thread(target=look) for _ in range(4)] + [threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    health = log.refresh(WAIT_S)

    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
    assert health.records == total
    assert losses(log) == [float(i) for i in range(total)]


def test_a_refresh_that_takes_too_long_goes_on_behind(log, folder, monkeypatch):
    may_read = threading.Event()
    read_block = record_source.read_block

    def slow(*args, **options):
        may_read.wait(30)
        return read_block(*args, **options)

    monkeypatch.setattr(record_source, "read_block", slow)
    began = time.monotonic()
    first = log.refresh(0.05)
    took = time.monotonic() - began
    may_read.set()
    second = log.refresh(WAIT_S)

    assert took < 25, "the block comes after 30 s"
    assert first.records == 0
    assert second.records == 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_reader_that_fails_says_so(folder, monkeypatch):
    def fail(self):
        raise SystemExit

    monkeypatch.setattr(RunLog, "_open_cached", fail)
    health = RunLog(folder / "metrics.jsonl", None).refresh(WAIT_S)

    assert health.problem == "reading the log failed; showing what was read before"
