"""Logs with mirrors that do all the odd things there are, and one good one.

python many_broken_mirrors.py LOG_DIR
"""

from __future__ import annotations

import sys
import threading
import time

from tests.faults.child_program import SlowestCall, TelemetryLogger
from tests.waiting import wait_until


class Broken(BaseException):
    pass


class BadDay:
    "Does something odd whenever it is asked for anything."

    def __init__(self, name, in_write, in_close):
        self.name = name
        self.write = lambda batch: in_write(batch)
        self.close = lambda: in_close(None)


def fine(batch):
    pass


def raising(error):
    def fail(batch):
        raise error

    return fail


def recursing(batch):
    recursing(batch)


hogged = []


def hogging(batch):
    hogged.append(bytes(20_000_000))
    raise MemoryError


def spoiling(batch):
    for record in batch:
        record.clear()
        record["event"] = object()


def logging_again(batch):
    log.log_event("from_the_mirror")
    log.flush(0.1)


def slow(batch):
    time.sleep(0.3)


def hanging(batch):
    threading.Event().wait()


odd = {
    "an error": raising(RuntimeError("down")),
    "a stop of an iteration": raising(StopIteration()),
    "an exit": raising(SystemExit(3)),
    "an interrupt": raising(KeyboardInterrupt()),
    "an end of a generator": raising(GeneratorExit()),
    "an exception of its own kind": raising(Broken("of its own")),
    "a recursion without end": recursing,
    "a memory without end": hogging,
    "a full disk": raising(OSError(28, "no space left on device")),
    "a spoilt batch": spoiling,
    "a record of its own": logging_again,
    "a slow answer": slow,
    "no answer": hanging,
}


class Nameless:
    def write(self, batch):
        pass

    def close(self):
        pass


threading.excepthook = lambda _: None  # what a mirror's thread ends with is the mirror's own
sinks = [BadDay(f"{what} in write", does, fine) for what, does in odd.items()]
sinks += [BadDay(f"{what} in close", fine, does) for what, does in odd.items()]
sinks += [Nameless(), None, "no sink at all"]


class Good:
    name = "good"
    seqs, closed = [], False

    def write(self, batch):
        self.seqs.extend(record["seq"] for record in batch)

    def close(self):
        self.closed = True


good = Good()
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, sinks=[*sinks, good], close_timeout=2.0)
slowest = SlowestCall()
for step in range(500):
    slowest.of(log.log_step, step, train_loss=1.0)
    if step % 25 == 0:
        time.sleep(0.05)
# What ends its thread is named once its first batch has come, and that may take a while.
ending = ("an exit", "an interrupt", "an exception of its own kind")


def is_reported():
    written = (log.run_folder / "metrics.jsonl").read_text()
    return all(f"{what} in write is off" in written for what in ending)


wait_until(is_reported)
began = time.monotonic()
log.close()
print(f"mirrors={len(sinks)}")
print(f"closing={time.monotonic() - began}")
print(f"slowest={slowest.seconds}")
wait_until(lambda: good.closed)
print(f"good={len(good.seqs)}")
print(f"in_order={good.seqs == sorted(set(good.seqs))}".replace("True", "1").replace("False", "0"))
sys.exit(7)
