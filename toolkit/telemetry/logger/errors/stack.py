"""Frames as text: file, line and function."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Final

MAX_FRAMES: Final = 30
_OUTERMOST: Final = 5
"""Of a deeper stack the first frames are recorded as well: they show which call went so deep."""
_OWN_FOLDER: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TELEMETRY: Final = os.path.dirname(os.path.dirname(os.path.dirname(_OWN_FOLDER))) + os.sep
_TRAINER: Final = os.path.join(_TELEMETRY, "trainer", "")
"""The example's own code: a training like any other."""
_PYTHON: Final = os.path.dirname(os.__file__) + os.sep
_INSTALLED: Final = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")

Walked = tuple[FrameType, int]
"""A frame and its line."""


class Stack:
    """A stack, innermost frame last; it references frames and must not be kept."""

    def __init__(self, walked: Iterable[Walked]) -> None:
        # Without the frames of this package's own decorators.
        walked = iter([step for step in walked if not step[0].f_code.co_filename.startswith(_OWN_FOLDER)])
        self.outermost = list(itertools.islice(walked, _OUTERMOST))
        innermost: deque[Walked] = deque(maxlen=MAX_FRAMES - _OUTERMOST)
        self.left_out = 0
        for step in walked:
            self.left_out += len(innermost) == innermost.maxlen
            innermost.append(step)
        self.innermost = list(innermost)

    def positions(self) -> str:
        """Return the locations of its frames, independent of the machine, to compare errors."""
        return "\n".join(
            f"{os.path.basename(frame.f_code.co_filename)}:{line}:{frame.f_code.co_name}"
            for frame, line in self.outermost + self.innermost
        )

    def lines(self, shown: Callable[[str], str]) -> list[str]:
        """Return one line per frame; `shown` shortens a path."""
        lines = [_line(step, shown) for step in self.outermost]
        if self.left_out:
            lines.append(f"… {self.left_out} frames …")
        return lines + [_line(step, shown) for step in self.innermost]


def exception_stack(walked: Iterable[Walked]) -> Stack:
    """Return the stack of an exception without telemetry's own frames around the script's calls.

    If there are no other frames, they are kept.
    """
    walked = list(walked)
    others = [step for step in walked if not _is_ours(step[0].f_code.co_filename)]
    return Stack(others or walked)


def is_of_script(file: str) -> bool:
    """Return whether a file is the script's own: neither installed, nor Python's, nor telemetry's."""
    is_installed = file.startswith((_PYTHON, "<")) or _INSTALLED.match(file) is not None
    return not is_installed and not _is_ours(file)


def _is_ours(file: str) -> bool:
    return file.startswith(_TELEMETRY) and not file.startswith(_TRAINER)


def walk_around(trace: TracebackType | None) -> list[Walked]:
    """Return the callers of the first frame of a traceback, outermost first.

    Empty if the function that caught the exception has returned: its callers are no longer known.
    """
    if trace is None:
        return []
    walked = walk_frame(sys._getframe(1))  # noqa: SLF001 - there is no other way
    frames = [frame for frame, _ in walked]
    around = walked[: frames.index(trace.tb_frame)] if trace.tb_frame in frames else []
    # Without Python's own frames that run a script or module.
    return [step for step in around if not step[0].f_code.co_filename.startswith("<frozen ")]


def walk_trace(trace: TracebackType | None) -> Iterator[Walked]:
    """Return the frames of a traceback, outermost first."""
    return ((frame, line or 0) for frame, line in traceback.walk_tb(trace))


def walk_frame(frame: FrameType | None) -> list[Walked]:
    """Return a frame and its callers, outermost first."""
    found = () if frame is None else traceback.walk_stack(frame)
    return [(each, line or 0) for each, line in found][::-1]


def fingerprint(*parts: str) -> str:
    """Return a short hash of the parts."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=6).hexdigest()


def path_shower() -> Callable[[str], str]:
    """Return a function that makes a path relative to the working folder, to site-packages, or to the home folder."""
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
            # Without the user's name.
            if path.startswith(folder):
                return instead + path[len(folder) :]
        return path

    return shown


def _line(step: Walked, shown: Callable[[str], str]) -> str:
    frame, line = step
    return f"{shown(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"
