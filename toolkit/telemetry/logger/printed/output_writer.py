"""Writes what the process prints to output.log of its run, in the background.

The thread that prints appends to a queue, and nothing else. A kill costs what was printed in the last second, and
so does code that holds the interpreter's lock until it is killed; any other end of the process costs nothing.
"""

from __future__ import annotations

import atexit
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from toolkit.telemetry.core.background import FILES, background_job
from toolkit.telemetry.core.lifetime import process_ends
from toolkit.telemetry.core.run_context import RunContext
from toolkit.telemetry.logger.printed.log_file import Line, LogFile
from toolkit.telemetry.logger.printed.screen import Screen
from toolkit.telemetry.logger.printed.taps import GAP, TAPS, Write, is_forwarded
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.evidence.output_log import NOTE, STDERR, TAKEN_UP_S
from toolkit.telemetry.runfolder.layout import output_file

_SOON_S: Final = 0.1
_AFTER_FAILURE_S: Final = 1.0
_MOST_WAITING: Final = 32_768
"""Writes that wait at one time for the disk; the oldest go first."""
_MOST_AT_ONCE: Final = 200_000
"""Characters that are worked on in one turn, each write counted as fifty more: the training's Python code waits for a
part of the 10 to 50 ms."""
_REST: Final = 16
"""How many times as much processor time as a turn took the process has before the next one: in a flood of output the
training keeps its processor."""
_LONGEST_REST_S: Final = 1.0
"""A process that waits for something uses no processor time."""


class OutputWriter:
    """The log of one session, from `start` to `close`."""

    def __init__(self, folder: Path, context: RunContext, *, mode: int, is_on: bool = True) -> None:
        self._is_on = is_on
        path = output_file(folder, context.rank)
        self._file = LogFile(path, mode=mode, session=context.session)
        self._guard = context.guard
        self._job = background_job("telemetry-output", self._turn, FILES, folder.parent)
        self._waiting: deque[tuple[float, int, str]] = deque()
        self._screens: dict[int, Screen] = {}
        self._before: tuple[int, str] = (-1, "")
        self._broken_off: set[int] | None = None
        """Streams that were written to since writes were lost; None if none were."""
        self._lines: list[Line] = []
        """Lines that the disk has not taken yet."""
        self._has_started = self._is_closed = False
        self._rest_until = (0.0, 0.0)
        """By the process's time and by the clock, whichever comes first."""

    def start(self) -> None:
        """Keep what is printed from now on."""
        if self._is_on:
            with self._guard.catch("keeping the output"):
                self._has_started = True
                TAPS.join(self, self._accept)
                self._job.start(TAKEN_UP_S)

    def close(self, timeout_s: float, error: BaseException | None = None) -> None:
        """Write what is left, at most for `timeout_s`; the traceback of `error` too, if it then ends the script."""
        if not self._has_started:
            return
        with self._guard.catch("keeping the output"):
            TAPS.leave(self)
            self._is_closed = True
            self._job.close(timeout_s)
            if error is not None and not process_ends():
                # The interpreter prints it when the run is closed already: after the end of a `with` block.
                atexit.register(self._add_traceback, id(error))

    def after_fork_in_child(self) -> None:
        """Stop: what a child prints is its own."""
        self._waiting.clear()
        self._is_closed = True

    def _accept(self, writes: Sequence[Write]) -> None:
        now = time.time()
        if len(self._waiting) + len(writes) > _MOST_WAITING:
            # Not emptied: the background may be taking from it.
            self._waiting = deque([(now, *GAP)])
        self._waiting.extend((now, *write) for write in writes)

    # In the background.

    def _turn(self) -> float | None:
        is_resting = time.process_time() < self._rest_until[0] and time.monotonic() < self._rest_until[1]
        if is_resting and not self._is_closed:
            return _SOON_S
        is_done = has_more = False
        begun = time.thread_time()
        with self._guard.catch("keeping the output"):
            has_more = self._write()
            is_done = True
        if self._is_closed:
            # A disk that took nothing was tried once more.
            return 0.0 if has_more else None
        rest = _REST * (time.thread_time() - begun)
        self._rest_until = time.process_time() + rest, time.monotonic() + _LONGEST_REST_S
        return _AFTER_FAILURE_S if not is_done else _SOON_S if has_more else TAKEN_UP_S

    def _write(self) -> bool:
        """Write what waits, or a part of it; return whether there is more."""
        if not self._lines:
            if not self._waiting:
                TAPS.hand_on()
            self._collect()
            self._lines = _masked(self._lines)
        self._file.append(self._lines, "" if self._is_closed else self._open_line())
        self._lines = []
        return bool(self._waiting)

    def _collect(self) -> None:
        """Turn what waits into lines."""
        taken = 0
        waiting = self._waiting
        while waiting and taken < _MOST_AT_ONCE:
            now, number, text = waiting.popleft()
            taken += 50 + len(text)
            if number == GAP[0]:
                self._break_off(now)
                continue
            if is_forwarded(number, text, self._before):
                self._before = (-1, "")
                continue
            self._before = (number, text)
            screen = self._screens.setdefault(number, Screen())
            if self._broken_off is not None and number not in self._broken_off:
                self._broken_off.add(number)
                screen.write("… ", now)
            screen.write(text, now)
            if "\n" in text:
                self._add(number, screen.take_done(now), now)
        now = time.time()
        is_end = self._is_closed and not self._waiting
        for stream, screen in list(self._screens.items()):
            self._add(stream, screen.take_done(now, is_end=is_end), now)
            if screen.is_blank:
                # The script may replace its streams again and again.
                del self._screens[stream]

    def _break_off(self, now: float) -> None:
        """Mark lines as cut that were being written before a gap; how the next ones began is not known either."""
        self._broken_off = set()
        for stream, screen in self._screens.items():
            if screen.open_line():
                screen.write(" …\n", now)
                self._add(stream, screen.take_done(now), now)
        text = "[telemetry] output before this line came too fast to be kept"
        self._lines.append(Line(time.time(), NOTE, text))

    def _add(self, stream: int, texts: list[str], now: float) -> None:
        self._lines += [Line(now, STDERR if stream % 2 else 0, text) for text in texts]

    def _open_line(self) -> str:
        """Return the newest line that is still being written."""
        if self._before[0] not in self._screens:
            return ""
        return _masked([Line(0.0, 0, self._screens[self._before[0]].open_line())])[0].text

    def _add_traceback(self, error_id: int) -> None:
        with self._guard.catch("keeping the traceback"):
            last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
            if last is not None and id(last) == error_id:
                text = "".join(traceback.format_exception(type(last), last, last.__traceback__))
                now = time.time()
                said = Line(
                    now, NOTE, "[telemetry] the run was closed, and this exception then ended the script:"
                )
                lines = [Line(now, STDERR, line) for line in text.splitlines()]
                self._file.append([said, *_masked(lines)])


def _masked(lines: list[Line]) -> list[Line]:
    """Return `lines` without secrets."""
    if not lines:
        return lines
    texts = Masker().mask_lines([line.text for line in lines])
    return [line._replace(text=text) for line, text in zip(lines, texts, strict=True)]
