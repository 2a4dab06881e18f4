"""The last lines that the script printed, kept while somebody wants to know them.

What stands in `sys.stdout` and `sys.stderr` stays there: only its `write` passes by here. A stream that takes another's
place later is followed; one that cannot be followed is left alone.
"""

from __future__ import annotations

import itertools
import re
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from toolkit.core.guard import Guard
from toolkit.privacy.masking import mask_secrets

_CHUNKS_A_LINE: Final = 20
"""Calls of `write` that are kept for each line that is wanted: `print` makes two, and a progress bar many."""
_MOST_BYTES: Final = 2_000_000
_LONGEST_LINE: Final = 500
_LOOKED_AT: Final = 4_000
"""Characters of a line that are looked at for secrets before it is cut."""
_MAX_STREAMS: Final = 8
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
"""What colours a terminal, and other letters that are none."""


class OutputTail:
    """Keeps the end of what is printed: so many lines at most, and never more than about two megabytes."""

    def __init__(self, lines: int) -> None:
        self.lines = lines
        calls = _CHUNKS_A_LINE * lines
        self._longest = max(200, _MOST_BYTES // calls)
        self._printed: deque[tuple[int, str]] = deque(maxlen=calls)
        self._taps: list[_Tap] = []
        self._numbers = itertools.count()

    def follow(self) -> None:
        """Listen to what stands in `sys.stdout` and `sys.stderr` now, and still to what stood there before."""
        self._taps = [tap for tap in self._taps if tap.stream() is not None]
        streams = [tap.stream() for tap in self._taps]
        for stream in (sys.stdout, sys.stderr):
            if stream is None or any(stream is known for known in streams):
                continue
            if len(self._taps) >= _MAX_STREAMS:
                # A script that replaces it again and again: the one that it left first is let go.
                self._taps.pop(0).let_go()
            tap = _Tap(stream, next(self._numbers), self._printed, self._longest)
            if tap.is_on:
                self._taps.append(tap)
                streams.append(stream)

    def let_go(self) -> None:
        """Give back each stream's own `write`, where nobody has put another one there meanwhile."""
        while self._taps:
            self._taps.pop().let_go()

    def last_lines(self) -> list[str]:
        """Return the last lines of all streams together, as a terminal would show them, secrets masked."""
        begun: dict[int, list[str]] = {}
        lines: list[str] = []
        before: tuple[int, str] = (-1, "")
        for number, text in list(self._printed):
            if text == before[1] and number != before[0]:
                # One stream hands on to another what is written to it: it was printed once.
                before = (-1, "")
                continue
            before = (number, text)
            first, *more = text.split("\n")
            # Put together once it is whole: a progress bar writes thousands of times to one line.
            begun.setdefault(number, []).append(first)
            if more:
                lines += ["".join(begun[number]), *more[:-1]]
                begun[number] = more[-1:]
        lines += ["".join(parts) for parts in begun.values()]
        shown = [_end_of(_as_shown(line), _LOOKED_AT) for line in lines]
        wanted = mask_secrets([line for line in shown if line.strip()][-self.lines :])
        return [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in wanted]


class _Tap:
    """What listens to one stream."""

    def __init__(self, stream: Any, number: int, printed: deque[tuple[int, str]], longest: int) -> None:
        self.is_on = False
        own = getattr(stream, "__dict__", {})
        # Somebody else's, where there is one: it is put back as it was.
        self._before: Callable[[str], int] | None = own.get("write")
        original: Callable[..., int] = stream.write
        keep = printed.append

        # A stream of somebody's own may be called in ways that Python's cannot.
        def write(*given: Any, **named: Any) -> int:
            text = given[0] if given else next(iter(named.values()), "")
            keep((number, text if type(text) is str and len(text) <= longest else _end_of(text, longest)))
            return original(*given, **named)

        # Not held on to: what stood in for the output for a while may be large.
        self._write = weakref.ref(write)
        try:
            self.stream: Callable[[], Any] = weakref.ref(stream)
            stream.write = write
        except (AttributeError, TypeError):
            # Its class has no room for it.
            return
        self.is_on = own.get("write") is write

    def let_go(self) -> None:
        """Give the stream its own `write` back."""
        stream = self.stream()
        if stream is None or getattr(stream, "__dict__", {}).get("write") is not self._write():
            return
        if self._before is not None:
            stream.write = self._before
        else:
            del stream.write


def _end_of(text: Any, longest: int) -> str:
    """Return the end of a text; not from the middle of a word on, for half a secret does not look like one."""
    if not isinstance(text, str):
        return ""
    return text if len(text) <= longest else f"… {text[-longest:].partition(' ')[2]}"


def _as_shown(line: str) -> str:
    """Return a line as a terminal shows it: what comes behind a carriage return stands over what was there."""
    parts = [part for part in line.split("\r") if part]
    return _CONTROL.sub("", parts[-1]) if parts else ""


class SharedTail:
    """One tail for every logger of the process: two of them would listen to each other."""

    def __init__(self) -> None:
        self._tail: OutputTail | None = None
        self._wanted: dict[int, int] = {}

    def join(self, who: object, lines: int, guard: Guard) -> None:
        """Listen for `who` from now on, so that `lines` of them can be told."""
        if not lines:
            return
        self._wanted[id(who)] = lines
        with guard.catch("listening to the output"):
            if self._tail is None or lines > self._tail.lines:
                if self._tail is not None:
                    self._tail.let_go()
                self._tail = OutputTail(lines)
            self._tail.follow()

    def follow(self) -> None:
        """Go with a stream that was replaced."""
        tail = self._tail
        if tail is not None:
            tail.follow()

    def leave(self, who: object) -> None:
        """Listen no longer for `who`; with the last one, the streams get their own `write` back."""
        if self._wanted.pop(id(who), None) is not None and not self._wanted and self._tail is not None:
            tail, self._tail = self._tail, None
            tail.let_go()

    def last_lines(self, who: object) -> list[str]:
        """Return what was printed last, as many lines as `who` asked for."""
        wanted, tail = self._wanted.get(id(who), 0), self._tail
        return tail.last_lines()[-wanted:] if tail is not None and wanted else []
