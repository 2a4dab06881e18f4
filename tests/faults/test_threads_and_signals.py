"""Calls from many threads, and from signal handlers that interrupt a call: none is lost, none comes twice."""

from __future__ import annotations

import itertools
import sys
from collections import Counter

from tests.faults.children import LONGEST_PAUSE_S, PROGRAMS
from tests.faults.crash_checks import whole_run
from tests.lengths import longer
from tests.records import with_event
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.steps import step_records

STEPS = longer(8_000, 30_000)


def test_eight_threads_log_at_once(tmp_path, start):
    ended = start(
        PROGRAMS / "log_from_eight_threads.py",
        tmp_path,
    ).end(code=7)

    assert not ended.trouble
    assert ended.number("slowest") < LONGEST_PAUSE_S, "the others' turns at the interpreter included"
    records = whole_run(tmp_path / "run")
    by_thread = {number: [] for number in range(8)}
    for record in with_event(records, "mine"):
        by_thread[record["thread"]].append(record["count"])
    assert all(counts == list(range(400)) for counts in by_thread.values()), "each thread's own order is kept"
    steps = with_event(records, "step")
    assert len(steps) + sum(step.get("steps_folded", 0) for step in steps) == 3200, "no step is unseen"


def test_a_signal_handler_that_logs_in_the_middle_of_a_call_neither_hangs_nor_spoils_the_order(
    tmp_path, start
):
    ended = start(PROGRAMS / "log_in_a_signal_handler.py", tmp_path, STEPS, "returns").end(code=7)

    # Its steps are far ahead of the loop's.
    assert ended.trouble.count("was logged after step") == len(ended.trouble.splitlines()) == 1
    assert ended.number("slowest") < LONGEST_PAUSE_S
    interrupts = range(1, int(ended.number("interrupts")) + 1)
    assert len(interrupts) > longer(20, 100)
    records = whole_run(tmp_path / "run")
    assert Counter(record["number"] for record in with_event(records, "interrupt")) == Counter(interrupts)
    steps = Counter(record["global_step"] for record in with_event(records, "step"))
    assert steps == Counter([*range(STEPS), *(10_000_000 + number for number in interrupts)])


def test_a_step_that_is_logged_at_any_line_of_another_steps_call_leaves_all_later_steps_written(tmp_path):
    # A handler runs between two lines; tracing replaces the signal, so that each line has its turn.
    log = TelemetryLogger("run", log_dir=tmp_path, log_every=1)
    log.log_start()
    lines = itertools.count()

    def interrupt(frame, event, _):
        if frame.f_code.co_filename != step_records.__file__:
            return None
        if event == "line" and next(lines) == at_line:
            log.log_step(10_000_000 + at_line, train_loss=1.0)
        return interrupt

    before = sys.gettrace()
    for at_line in range(60):
        lines = itertools.count()
        sys.settrace(interrupt)
        log.log_step(4 * at_line, train_loss=1.0)
        sys.settrace(before)
        for more in range(1, 4):
            log.log_step(4 * at_line + more, train_loss=1.0)
    log.close()

    steps = {record["global_step"] for record in with_event(whole_run(tmp_path / "run"), "step")}
    assert 10_000_020 in steps, "calls were interrupted"
    assert set(range(4 * 60)) <= steps


def test_a_signal_handler_that_raises_out_of_a_call_leaves_no_gap_and_no_lock_behind(tmp_path, start):
    ended = start(PROGRAMS / "log_in_a_signal_handler.py", tmp_path, STEPS, "raises").end(code=7)

    assert ended.number("interrupts") > longer(20, 100)
    assert ended.number("flushing") < 30.0, "a lock was left held"
    records = whole_run(tmp_path / "run")
    assert with_event(records, "after")
    steps = {
        record["global_step"] for record in with_event(records, "step") if record["global_step"] < 10_000_000
    }
    assert len(steps) >= ended.number("returned"), "each call that returned has its record"


def test_each_ordinary_exception_of_the_scripts_signal_handler_arrives(tmp_path, start, record_property):
    ended = start(
        PROGRAMS / "raise_in_a_signal_handler.py",
        tmp_path,
    ).end(code=7)

    assert ended.number("arrived") == ended.number("raised")
    assert not ended.number("swallowed"), ended.err
    records = whole_run(tmp_path / "run")
    assert with_event(records, "after")
    assert len(with_event(records, "mine")) >= ended.number("returned"), (
        "each call that returned has its record"
    )
    record_property("measured", f"{ended.number('raised'):.0f} raised in calls of ours, all of them arrived")


def test_an_object_that_logs_while_it_is_destroyed_is_no_trouble(tmp_path, start):
    start(
        PROGRAMS / "log_while_destroyed.py",
        tmp_path,
    ).end(code=7)

    records = whole_run(tmp_path / "run", steps=range(1000))
    assert len(with_event(records, "destroyed")) == 1000
