"""What libraries may print in the terminal: plain characters, and only a few messages of each kind."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MOST_OF_A_KIND: Final = 5
SPAN_S: Final = 600.0
"""A traceback has some kilobytes: strangers who cause one message after another fill a few megabytes a day."""

_BELOW_EVERY_HANDLER: Final = logging.NOTSET - 1
_LONGEST_WORD: Final = 200

MakeRecord = Callable[..., logging.LogRecord]


@contextmanager
def short_and_plain(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Keep what is logged short and plain, in the whole process, for as long as the block lasts."""
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(_limited(_with_plain_words(before), clock))
    try:
        yield
    finally:
        logging.setLogRecordFactory(before)


def _limited(make: MakeRecord, clock: Callable[[], float]) -> MakeRecord:
    """Return `make` with a limit for each line of code and each type of exception.

    A record cannot be withdrawn once it is made, so one too many gets a level that no handler takes.
    """
    spans: dict[tuple[object, ...], tuple[float, int]] = {}
    lock = threading.Lock()

    def make_limited(*args: object, **kwargs: object) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if record.levelno < logging.WARNING:
            return record
        kind = (record.name, record.pathname, record.lineno, record.exc_info and record.exc_info[0])
        now = clock()
        with lock:
            began, count = spans.get(kind, (now, 0))
            left_out = 0
            if now - began >= SPAN_S:
                left_out = max(0, count - MOST_OF_A_KIND)
                began, count = now, 0
            count += 1
            spans[kind] = (began, count)
        if count > MOST_OF_A_KIND:
            record.levelno = _BELOW_EVERY_HANDLER
        elif left_out:
            record.msg = f"{record.msg} ({left_out:,} more of this kind were not printed)"
        elif count == MOST_OF_A_KIND:
            record.msg = f"{record.msg} (no more of this kind for {SPAN_S / 60:.0f} minutes)"
        return record

    return make_limited


def _with_plain_words(make: MakeRecord) -> MakeRecord:
    """Return `make` with what strangers sent spelled out: a terminal obeys some characters."""

    def make_plain(*args: object, **kwargs: object) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if isinstance(record.args, tuple):
            record.args = tuple(
                ascii(word[:_LONGEST_WORD]) if isinstance(word, str) and not word.isprintable() else word
                for word in record.args
            )
        return record

    return make_plain
