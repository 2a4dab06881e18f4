"""A disk that takes nothing more: the loop goes on, nothing goes missing unsaid, and writing resumes by itself."""

from __future__ import annotations

import contextlib
import time

import pytest

from tests.faults.children import LONGEST_PAUSE_S, PROGRAMS, repair
from tests.faults.crash_checks import assert_nothing_is_missing, whole_run
from tests.lengths import in_make_faults, longer
from tests.records import read_records, with_event
from tests.waiting import wait_until

AT_ONCE_S = 3.0
MOST_TRIES = 5
"""A machine that is busy elsewhere may need longer, but not each time."""


@pytest.mark.root
def test_a_disk_that_is_full_for_a_while_loses_nothing_and_is_written_to_again_within_a_second(
    start, mount_in_memory
):
    disk = mount_in_memory("size=16m")
    records_at = disk / "run" / "metrics.jsonl"
    child = start(PROGRAMS / "log_on_request.py", disk, 32, 60)
    child.ask("steps 100")
    steps, resumed_after = 100, []
    while min(resumed_after, default=AT_ONCE_S) >= AT_ONCE_S and len(resumed_after) < MOST_TRIES:
        with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass
        child.ask("steps 1500")
        steps += 1500
        size_when_full = _size_once_it_stays(records_at)
        assert records_at.read_bytes().count(b"\n") < steps, "the disk was not full after all"
        (disk / "ballast").unlink()
        resumed_after.append(_seconds_until_it_grows(records_at, size_when_full))
    child.tell("steps 1000")
    ended = child.end(line="end", code=7)

    assert min(resumed_after) < AT_ONCE_S
    assert ended.number("slowest") < LONGEST_PAUSE_S
    assert ended.err.count("No space left on device") <= 4, "said once for each of the four files"
    records = whole_run(disk / "run", steps=range(steps + 1000))
    assert not with_event(records, "lost")
    assert with_event(records, "end")


@pytest.mark.root
def test_a_run_that_starts_on_a_full_disk_is_written_once_there_is_room(start, mount_in_memory):
    disk = mount_in_memory("size=1m")
    ballast = disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(2**21))
    child = start(PROGRAMS / "log_on_request.py", disk, 32, 60)
    child.ask("steps 200")
    ballast.unlink()
    ended = child.end(line="end", code=7)

    assert ended.number("slowest") < LONGEST_PAUSE_S
    whole_run(disk / "run", steps=range(200))


def test_a_file_that_may_not_grow_is_written_on_once_it_may(tmp_path, start):
    run = tmp_path / "run"
    child = start(PROGRAMS / "log_on_request.py", tmp_path, 32, 60)
    child.ask("steps 100")
    steps, resumed_after = 100, []
    while min(resumed_after, default=AT_ONCE_S) >= AT_ONCE_S and len(resumed_after) < MOST_TRIES:
        limit = 400_000 + _size_once_it_stays(run / "metrics.jsonl")
        child.limit_files(limit)
        child.ask("steps 1200")
        steps += 1200
        wait_until(lambda limit=limit: (run / "metrics.jsonl").stat().st_size == limit)
        child.limit_files(None)
        resumed_after.append(_seconds_until_it_grows(run / "metrics.jsonl", limit))
    child.tell("steps 100")
    ended = child.end(line="end", code=7)

    assert min(resumed_after) < AT_ONCE_S
    assert ended.number("slowest") < LONGEST_PAUSE_S
    records = whole_run(run, steps=range(steps + 100))
    assert not with_event(records, "lost")
    errors = [record for record in with_event(records, "error") if record["source"] == "telemetry"]
    assert "writing records" in [record["doing"] for record in errors], (
        "the run folder itself says what went wrong"
    )


@in_make_faults
def test_what_does_not_fit_into_the_queue_is_counted_exactly(tmp_path, start):
    child = start(PROGRAMS / "log_on_request.py", tmp_path, 1.0, 60)
    child.ask("steps 100")
    child.limit_files(100_000)
    child.ask("steps 6000")
    child.ask("event finding")
    child.limit_files(None)
    # What is said of the event is the last that was held: after it there is room again.
    wait_until(lambda: b"it is kept as 'x_finding'" in (tmp_path / "run" / "metrics.jsonl").read_bytes())
    child.tell("steps 100")
    ended = child.end(line="end", code=7)

    assert ended.number("slowest") < LONGEST_PAUSE_S
    records = whole_run(tmp_path / "run")
    steps = with_event(records, "step")
    lost = sum(record["records"] for record in with_event(records, "lost"))
    assert lost > 1000
    assert len(steps) + len(with_event(records, "x_finding")) + lost == 6_201
    assert len(steps) > 1500, "two segments of the journal and one MiB besides were kept"
    assert with_event(records, "finding"), "what explains a run is kept when metrics no longer are"
    assert with_event(records, "end")[0]["records_lost"] == lost
    assert steps[-1]["global_step"] == 6_199


def test_a_disk_that_stays_full_does_not_hold_up_the_end_and_repair_finds_the_rest(tmp_path, start):
    run = tmp_path / "run"
    child = start(PROGRAMS / "log_on_request.py", tmp_path, 32, 1)
    child.ask("steps 100")
    child.limit_files(100_000)
    child.ask("steps 3000")
    began = time.monotonic()
    ended = child.end(line="end", code=7)
    took = time.monotonic() - began
    repair(run)

    assert took < 1 + LONGEST_PAUSE_S, "the disk stays full for ever"
    assert "telemetry repair" in ended.err, "it says how to get the rest"
    records = whole_run(run, steps=range(3_100))
    assert not with_event(records, "lost")
    assert with_event(records, "end")


def test_the_end_of_a_run_with_its_journal_on_the_full_disk_promises_only_what_that_holds(tmp_path, start):
    child = start(PROGRAMS / "log_on_request.py", tmp_path, 32, 1, "folder")
    child.ask("steps 100")
    child.limit_files(100_000)
    child.ask("steps 100")
    ended = child.end(line="end")

    assert "writes those that the journal holds" in ended.err


@in_make_faults
def test_a_disk_that_stays_full_beyond_the_queue_loses_only_what_a_record_reports(tmp_path, start):
    run = tmp_path / "run"
    child = start(PROGRAMS / "log_on_request.py", tmp_path, 1.0, 1)
    child.ask("steps 100")
    child.limit_files(100_000)
    child.ask("steps 6000")
    child.end(line="end", code=7)
    repair(run)

    records = whole_run(run)
    lost = sum(record["records"] for record in with_event(records, "lost"))
    assert lost > 1000
    assert len(with_event(records, "step")) + lost == 6_100
    assert with_event(records, "end")


def test_a_full_disk_leaves_no_half_line_in_the_middle(tmp_path, start):
    child = start(PROGRAMS / "log_on_request.py", tmp_path, 32, 60)
    child.ask("steps 10")
    for limit in range(50_000, 150_000, longer(9_137, 2_237)):
        child.tell("steps 10")
        child.limit_files(limit)
        time.sleep(0.1)
    child.limit_files(None)
    child.end(line="end", code=7)

    records = read_records(tmp_path / "run")
    assert_nothing_is_missing(records)


def _size_once_it_stays(path):
    deadline, size, since = time.monotonic() + 100, -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        assert time.monotonic() < deadline
        if path.stat().st_size != size:
            size, since = path.stat().st_size, time.monotonic()
        time.sleep(0.01)
    return size


def _seconds_until_it_grows(path, size):
    began = time.monotonic()
    wait_until(lambda: path.stat().st_size > size)
    return time.monotonic() - began
