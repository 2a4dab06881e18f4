"""Keeps the terminal readable: printable characters only, and a few log messages of each kind."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MAX_PER_KIND: Final = 5
PERIOD_S: Final = 600.0
"""With this limit, strangers who provoke one traceback after another fill at most a few megabytes a day."""

_BELOW_EVERY_HANDLER: Final = logging.NOTSET - 1
_MAX_ARGUMENT: Final = 200

MakeRecord = Callable[..., logging.LogRecord]


@contextmanager
def concise_logging(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Limit and sanitise log messages in the whole process while the block runs."""
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(_limited(_sanitised(before), clock))
    try:
        yield
    finally:
        logging.setLogRecordFactory(before)


def _limited(make: MakeRecord, clock: Callable[[], float]) -> MakeRecord:
    """Return `make` with a limit per line of code and exception type; above it a record gets a level not printed."""
    periods: dict[tuple[object, ...], tuple[float, int]] = {}
    lock = threading.Lock()

    def make_limited(*args: object, **kwargs: object) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if record.levelno < logging.WARNING:
            return record
        kind = (record.name, record.pathname, record.lineno, record.exc_info and record.exc_info[0])
        now = clock()
        with lock:
            began, count = periods.get(kind, (now, 0))
            left_out = 0
            if now - began >= PERIOD_S:
                left_out = max(0, count - MAX_PER_KIND)
                began, count = now, 0
            count += 1
            periods[kind] = (began, count)
        if count > MAX_PER_KIND:
            record.levelno = _BELOW_EVERY_HANDLER
        elif left_out:
            record.msg = f"{record.msg} ({left_out:,} more of this kind were not printed)"
        elif count == MAX_PER_KIND:
            record.msg = f"{record.msg} (no more of this kind for {PERIOD_S / 60:.0f} minutes)"
        return record

    return make_limited


def _sanitised(make: MakeRecord) -> MakeRecord:
    """Return `make` with unprintable arguments escaped: they could control the terminal."""

    def make_plain(*args: object, **kwargs: object) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if isinstance(record.args, tuple):
            record.args = tuple(
                ascii(value[:_MAX_ARGUMENT]) if isinstance(value, str) and not value.isprintable() else value
                for value in record.args
            )
        return record

    return make_plain
