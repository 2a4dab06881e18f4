"""A log is read once as it grows, and whatever lies in its place is reported and never waited for."""

import math
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.lengths import in_make_faults
from tests.made_runs import append, step_record, write_run
from toolkit.telemetry.runfolder import reader
from toolkit.telemetry.runfolder.metrics import MAX_METRICS
from toolkit.telemetry.runs.columns import run_log
from toolkit.telemetry.runs.columns.run_log import RunLog

posix = pytest.mark.skipif(os.name != "posix", reason="links, FIFOs and devices are POSIX's")

WAIT_S = 60.0
ROOT = Path(__file__).parents[3]


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


def test_a_log_is_read_from_its_start(log):
    health = log.refresh(WAIT_S)

    assert losses(log) == [float(i) for i in range(10)]
    assert (health.records, health.bad_count, health.complete) == (10, 0, True)
    assert health.bytes_read == log.path.stat().st_size
    assert health.replaced_at is None
    assert health.problem is None


def test_half_a_line_at_the_end_is_left_until_it_is_whole(log, folder):
    with log.path.open("ab") as file:
        file.write(b'{"event":"step","session":1,"global_step":10,"train_l')
    first = log.refresh(WAIT_S)
    seen = losses(log)
    with log.path.open("ab") as file:
        file.write(b'oss":10.0}\n')
    second = log.refresh(WAIT_S)

    assert len(seen) == 10
    assert (first.bad_count, second.bad_count) == (0, 0)
    assert losses(log)[-1] == 10.0
    assert second.records == 11


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


def test_a_log_of_several_blocks_is_read_to_its_end_by_one_refresh(log, folder, monkeypatch):
    monkeypatch.setattr(run_log, "_BLOCK_BYTES", 1024 * 1024)
    append(folder, [step_record(i, train_loss=float(i), note="x" * 1000) for i in range(10, 3000)])

    health = log.refresh(WAIT_S)

    assert health.bytes_read == log.path.stat().st_size > 3 * 1024 * 1024
    assert losses(log) == [float(i) for i in range(3000)]


def test_a_replaced_log_that_is_larger_than_a_block_is_read_to_its_end(log, folder, monkeypatch):
    monkeypatch.setattr(run_log, "_BLOCK_BYTES", 1024 * 1024)
    log.refresh(WAIT_S)
    log.path.unlink()
    append(folder, [step_record(i, train_loss=float(i), note="x" * 1000) for i in range(3000)])

    health = log.refresh(WAIT_S)

    assert health.bytes_read == log.path.stat().st_size
    assert len(losses(log)) == 3000


def test_bad_lines_are_counted_and_the_first_of_them_kept(log, folder):
    with log.path.open("ab") as file:
        for _ in range(150):
            file.write(b'torn {"event"\n')
    append(folder, [step_record(10, train_loss=10.0)])

    health = log.refresh(WAIT_S)

    assert (health.bad_count, len(health.bad_lines), health.records) == (150, 100, 11)
    assert "not strict JSON" in health.bad_lines[0].reason
    assert losses(log)[-1] == 10.0


def test_what_the_run_lost_is_added_up_with_its_reasons(log, folder):
    lost = {"event": "lost", "session": 1, "time": 1.0}
    append(
        folder,
        [
            {**lost, "records": 7, "reason": "queue full"},
            {**lost, "records": 5, "reason": "queue full"},
            {**lost, "records": "many", "reason": "disk full"},
            lost,
        ],
    )

    health = log.refresh(WAIT_S)

    assert health.lost_records == 12
    assert health.lost_reasons == ("queue full", "disk full", "no reason given")


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


def test_nan_and_infinity_come_back_as_what_they_are(log, folder):
    append(folder, [step_record(10 + i, train_loss=x) for i, x in enumerate((math.nan, math.inf, -math.inf))])
    log.refresh(WAIT_S)

    info = {metric.name: metric for metric in log.metrics()}["train_loss"]

    assert (info.count, info.non_finite, info.low, info.high) == (13, 3, 0.0, 9.0)
    assert info.last == -math.inf
    series = log.series("train_loss", "step", None, 600)
    assert [run.kind for run in series.non_finite] == ["NaN", "Infinity", "-Infinity"]


# ---------------------------------------------------------------- another file of the same name


def test_a_log_that_was_cut_short_is_said_and_read_again(log, folder):
    log.refresh(WAIT_S)
    log.path.write_bytes(b"")
    append(folder, [step_record(0, train_loss=99.0)])

    health = log.refresh(WAIT_S)

    assert health.replaced_at == pytest.approx(time.time(), abs=600)
    assert losses(log) == [99.0]
    assert health.records == 1


def test_a_log_that_was_replaced_by_a_longer_one_is_said_and_read_again(log, folder):
    log.refresh(WAIT_S)
    other = folder / "other"
    append(folder, [step_record(i, train_loss=-1.0) for i in range(50)], path=other)
    os.replace(other, log.path)

    health = log.refresh(WAIT_S)

    assert health.replaced_at is not None
    assert losses(log) == [-1.0] * 50


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


def test_a_log_that_comes_later_is_read_then(tmp_path):
    log = RunLog(tmp_path / "metrics.jsonl", None)
    before = log.refresh(WAIT_S)
    append(tmp_path, [step_record(0, train_loss=1.0)])

    assert "No such file" in before.problem
    assert log.metrics() == []
    assert log.refresh(WAIT_S).problem is None
    assert losses(log) == [1.0]


# ---------------------------------------------------------------- what is no log


def _fifo(path):
    os.mkfifo(path)


def _link(path):
    outside = path.parent.parent / "outside.jsonl"
    append(path.parent, [step_record(0, train_loss=1.0)], path=outside)
    path.symlink_to(outside)


def _device(path):
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero, which never ends
    except PermissionError:
        pytest.skip("only root makes devices")


@posix
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("put", "what"),
    [(_fifo, "a FIFO"), (_link, "a symbolic link"), (os.mkdir, "a folder"), (_device, "a device")],
)
def test_what_is_no_file_is_said_and_not_waited_for(log, put, what):
    log.path.unlink()
    put(log.path)

    health = log.refresh(WAIT_S)
    again = log.refresh(WAIT_S)

    assert f"is {what}, not a regular file" in health.problem
    assert again.problem == health.problem
    assert log.metrics() == []
    assert log.events(None, 10) == []


@in_make_faults
@posix
def test_a_line_of_a_hundred_megabytes_is_passed_over_without_being_held(tmp_path):
    script = """
        import resource, sys
        from pathlib import Path
        from toolkit.telemetry.runs.columns.run_log import RunLog

        log = RunLog(Path(sys.argv[1]), None)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        health = log.refresh(100.0)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert (health.records, health.bad_count) == (2, 1), health
        assert health.bad_lines[0].length == 100_000_000, health
        assert [m.last for m in log.metrics()] == [2.0]
        assert grown < 80_000, grown
    """
    path = tmp_path / "metrics.jsonl"
    append(tmp_path, [step_record(0, train_loss=1.0)])
    with path.open("ab") as file:
        for _ in range(100):
            file.write(b"[" * 1_000_000)
        file.write(b"\n")
    append(tmp_path, [step_record(1, train_loss=2.0)])

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)], capture_output=True, text=True, cwd=ROOT
    )

    assert done.returncode == 0, done.stderr


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
    read_block = reader.read_block

    def slow(*args, **options):
        may_read.wait(30)
        return read_block(*args, **options)

    monkeypatch.setattr(reader, "read_block", slow)
    began = time.monotonic()
    first = log.refresh(0.05)
    took = time.monotonic() - began
    may_read.set()
    second = log.refresh(WAIT_S)

    assert took < 25, "the block comes after 30 s"
    assert first.records == 0
    assert second.records == 10


def test_a_log_that_is_still_being_opened_is_not_complete(folder, monkeypatch):
    opened = threading.Event()
    monkeypatch.setattr(RunLog, "_open_cached", lambda self: opened.wait(30))
    log = RunLog(folder / "metrics.jsonl", None)

    assert not log.refresh(0.05).complete

    opened.set()
    assert log.refresh(WAIT_S).complete


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_reader_that_fails_says_so(folder, monkeypatch):
    def fail(self):
        raise SystemExit

    monkeypatch.setattr(RunLog, "_open_cached", fail)
    health = RunLog(folder / "metrics.jsonl", None).refresh(WAIT_S)

    assert health.problem == "reading the log failed; showing what was read before"
