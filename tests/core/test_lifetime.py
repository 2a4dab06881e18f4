"""A run ends once, whoever ends it and in the middle of what."""

import sys
import threading
import time

from toolkit.telemetry.core.lifetime import CloseOnce


def traced(call, at_each_step):
    """Call `call` on a thread of its own, and `at_each_step(n)` where a signal handler could come for the nth time."""
    steps = 0

    def trace(frame, event, _):
        nonlocal steps
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps += 1
            at_each_step(steps)
        return trace

    def run():
        sys.settrace(trace)
        call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(100)
    assert not thread.is_alive(), "it waits for itself"
    return steps


def test_a_handler_that_interrupts_the_beginning_of_an_end_neither_ends_it_too_nor_waits_for_itself():
    at = steps = 1
    while at <= steps:
        ends, began, waited = CloseOnce(), [], []

        def handle(step, at=at, ends=ends, began=began, waited=waited):
            if step == at:
                before = time.monotonic()
                began.append(ends.begin())
                if not began[0]:
                    ends.wait(60.0)
                waited.append(time.monotonic() - before)

        steps = traced(lambda ends=ends, began=began: began.append(ends.begin()), handle)
        assert sum(began) == 1, at
        assert sum(waited) < 30.0, at
        at += 1

    assert at > 10


def test_a_handler_that_interrupts_a_wait_for_the_end_returns():
    ends = CloseOnce()
    assert ends.begin()
    handled = []

    def handle(step):
        ends.wait(0.001)
        handled.append(step)

    traced(lambda: ends.wait(0.001), handle)
    ends.done()

    assert handled
    traced(lambda: ends.wait(60.0), lambda step: ends.wait(60.0))
