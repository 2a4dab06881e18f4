"""Waiting for the end of a thread, in such a way that Ctrl-C is noticed."""

from __future__ import annotations

import threading
import time
from typing import Final

_NOTICE_WITHIN_S: Final = 0.25


def join_thread(thread: threading.Thread, timeout_s: float) -> None:
    """Wait until `thread` has ended, at most `timeout_s`.

    Python notices a signal that arrives just before it begins to wait for a lock only when that wait is over. So a long
    wait is made of short ones.
    """
    deadline = time.monotonic() + timeout_s
    while thread.is_alive() and (left_s := deadline - time.monotonic()) > 0.0:
        thread.join(min(left_s, _NOTICE_WITHIN_S))
