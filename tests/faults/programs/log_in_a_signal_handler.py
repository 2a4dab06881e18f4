"""Logs while a timer interrupts the calls some hundred times; its handler logs too, and raises if asked.

python log_in_a_signal_handler.py LOG_DIR STEPS returns|raises
"""

from __future__ import annotations

import itertools
import signal
import sys
import time

from tests.faults.child_program import SlowestCall, TelemetryLogger


class Interrupted(BaseException):
    pass


is_wanted = False


def raise_if_wanted():
    global is_wanted
    if is_wanted:
        is_wanted = False
        raise Interrupted


log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
log.log_start()
numbers = itertools.count(1)
is_stormy = True


def handle(signal_number, frame):
    number = next(numbers)
    log.log_event("interrupt", number=number)
    log.log_step(10_000_000 + number, train_loss=2.0)
    set_timer()
    raise_if_wanted()


def set_timer():
    # A timer that repeated itself would leave a slow machine no time but for handlers.
    signal.setitimer(signal.ITIMER_REAL, 0.0003 if is_stormy else 0)


signal.signal(signal.SIGALRM, handle)
slowest = SlowestCall()
returned = 0
set_timer()
for step in range(int(sys.argv[2])):
    if sys.argv[3] == "returns":
        slowest.of(log.log_step, step, train_loss=1.0)
        continue
    try:
        is_wanted = True
        log.log_step(step, train_loss=1.0)
        returned += 1
        is_wanted = False
    except Interrupted:
        pass
is_stormy = False
set_timer()
if sys.argv[3] == "raises":
    began = time.monotonic()
    log.log_event("after")
    log.flush(60)
    print(f"flushing={time.monotonic() - began}")
    print(f"returned={returned}")
log.close()
print(f"slowest={slowest.seconds}")
print(f"interrupts={next(numbers) - 1}")
sys.exit(7)
