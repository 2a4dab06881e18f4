"""Frames as text: which file, line and function; and where asked, the source line and the local values."""

from __future__ import annotations

import gc
import hashlib
import itertools
import linecache
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, Final

from toolkit.privacy.masking import Masker
from toolkit.telemetry.errors.local_values import shown_locals

MAX_FRAMES: Final = 30
_OUTERMOST: Final = 5
"""Of a deeper stack the first frames are told as well: which call it was that went so deep."""
_FRAMES_WITH_LOCALS: Final = 10
_DEEPEST: Final = 100_000
_LONGEST_LINE: Final = 200
_OWN_FOLDER: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TELEMETRY: Final = os.path.dirname(os.path.dirname(_OWN_FOLDER)) + os.sep
_INSTALLED: Final = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")

Walked = tuple[FrameType, int]
"""A frame, and the line that it was at."""


class Stack:
    """A stack that was walked, innermost frame last; it holds on to frames and must not be kept."""

    def __init__(self, walked: Iterable[Walked]) -> None:
        # What stands between the caller and the called is the capture's own, and nobody's trouble.
        walked = iter([step for step in walked if not step[0].f_code.co_filename.startswith(_OWN_FOLDER)])
        self.outermost = list(itertools.islice(walked, _OUTERMOST))
        innermost: deque[Walked] = deque(maxlen=MAX_FRAMES - _OUTERMOST)
        self.left_out = 0
        for step in walked:
            self.left_out += len(innermost) == innermost.maxlen
            innermost.append(step)
        self.innermost = list(innermost)

    def positions(self) -> str:
        """Return where its frames are, as something to tell one error from another by, on whatever machine."""
        return "\n".join(
            f"{os.path.basename(frame.f_code.co_filename)}:{line}:{frame.f_code.co_name}"
            for frame, line in self._kept()
        )

    def lines(self, shown: Callable[[str], str]) -> list[str]:
        """Return one line a frame; `shown` is what becomes of a path."""
        lines = [_line(step, shown) for step in self.outermost]
        if self.left_out:
            lines.append(f"… {self.left_out} frames …")
        return lines + [_line(step, shown) for step in self.innermost]

    def frames(
        self, shown: Callable[[str], str], masker: Masker, *, source: bool, local_values: bool
    ) -> list[dict[str, Any]]:
        """Return the frames with what was asked for; local values of the innermost ones only."""
        kept = self._kept()
        found = []
        for number, (frame, line) in enumerate(kept):
            told: dict[str, Any] = {
                "file": shown(frame.f_code.co_filename),
                "line": line,
                "function": frame.f_code.co_name,
            }
            if source:
                told["source"] = _source_line(frame, line, masker)
            if local_values and len(kept) - number <= _FRAMES_WITH_LOCALS:
                told["locals"] = shown_locals(frame, masker)
            found.append({name: value for name, value in told.items() if value})
        return found

    def _kept(self) -> list[Walked]:
        return self.outermost + self.innermost


def exception_stack(walked: Iterable[Walked]) -> Stack:
    """Return the stack of an exception without telemetry's own frames, which stand around the script's calls.

    An exception that went through nothing else is told with them.
    """
    walked = list(walked)
    others = [step for step in walked if not step[0].f_code.co_filename.startswith(_TELEMETRY)]
    return Stack(others or walked)


def walk_around(trace: TracebackType | None) -> list[Walked]:
    """Return the frames around those of a traceback, outermost first: who called what is still being left.

    Nothing where the exception was caught by something that is over: where its callers were then, nobody knows now.
    """
    if trace is None:
        return []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - there is no other way
    for _ in range(_DEEPEST):
        if frame is None or frame is trace.tb_frame:
            break
        frame = frame.f_back
    around = walk_frame(frame.f_back) if frame is not None else []
    # What runs a script or a module for Python itself is not the script's.
    return [step for step in around if not step[0].f_code.co_filename.startswith("<frozen ")]


def walk_trace(trace: TracebackType | None) -> Iterator[Walked]:
    """Yield the frames of a traceback, outermost first."""
    for _ in range(_DEEPEST):
        if trace is None:
            return
        yield trace.tb_frame, trace.tb_lineno or 0
        trace = trace.tb_next


def walk_frame(frame: FrameType | None) -> list[Walked]:
    """Return the frames of a stack that is being run, outermost first."""
    walked: list[Walked] = []
    while frame is not None and len(walked) < _DEEPEST:
        walked.append((frame, frame.f_lineno or 0))
        frame = frame.f_back
    return walked[::-1]


def frames_of_threads() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by the thread's identifier.

    Python before 3.12 can hang in `sys._current_frames` forever: a garbage collection within it may wait for a lock
    that the call itself holds (python/cpython#106883). So it is called here alone, with the collector off.
    """
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


def fingerprint(*parts: str) -> str:
    """Return a short text that is the same for the same parts."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=6).hexdigest()


def path_shower() -> Callable[[str], str]:
    """Return what shows a path as seen from here: from where the script runs, from the packages, from home."""
    home = os.path.expanduser("~")
    try:
        here = os.getcwd()
    except OSError:
        here = home
    folders = [
        (folder + os.sep, shown) for folder, shown in ((here, ""), (home, "~" + os.sep)) if len(folder) > 1
    ]

    def shown(path: str) -> str:
        installed = _INSTALLED.match(path)
        if installed is not None:
            return path[installed.end() :]
        for folder, instead in folders:
            # Whose home it is concerns nobody.
            if path.startswith(folder):
                return instead + path[len(folder) :]
        return path

    return shown


def _line(step: Walked, shown: Callable[[str], str]) -> str:
    frame, line = step
    return f"{shown(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"


def _source_line(frame: FrameType, line: int, masker: Masker) -> str:
    text = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
    return str(masker.mask(text))[:_LONGEST_LINE]
