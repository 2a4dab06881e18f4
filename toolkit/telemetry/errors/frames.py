"""Where the threads of this process are.

Python before 3.12 can hang in `sys._current_frames` for ever: a garbage collection within it may wait for a lock that
the call itself holds (python/cpython#106883). So it is called here alone, with the collector off.
"""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType


def frames_of_threads() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by the thread's identifier."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()  # noqa: SLF001 - Python has no other way to ask for them
    finally:
        if is_on:
            gc.enable()


def frame_of_main_thread() -> FrameType | None:
    """Return the innermost frame of the main thread; on that thread itself, the one that calls this."""
    main = threading.main_thread().ident or 0
    if threading.get_ident() == main:
        return sys._getframe(1)  # noqa: SLF001 - a frame has no other way to its caller
    return frames_of_threads().get(main)
