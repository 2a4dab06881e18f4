"""Keeps the last lines that the script printed.

The objects in `sys.stdout` and `sys.stderr` stay there: only their `write` is wrapped. A stream that replaces one of
them later is wrapped too; one that cannot be wrapped is left alone.
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
"""Calls of `write` that are kept for each requested line: `print` makes two, and a progress bar many."""
_MOST_BYTES: Final = 2_000_000
_LONGEST_LINE: Final = 500
_SEARCHED: Final = 4_000
"""Characters of a line that are searched for secrets before it is truncated."""
_MAX_STREAMS: Final = 8
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
"""Escape sequences of terminals, and control characters."""


class OutputTail:
    """Keeps the last `lines` lines of output, and never more than about two megabytes."""

    def __init__(self, lines: int) -> None:
        self.lines = lines
        calls = _CHUNKS_A_LINE * lines
        self._longest = max(200, _MOST_BYTES // calls)
        self._printed: deque[tuple[int, str]] = deque(maxlen=calls)
        self._taps: list[_Tap] = []
        self._numbers = itertools.count()

    def follow(self) -> None:
        """Wrap the current `sys.stdout` and `sys.stderr`; earlier ones stay wrapped."""
        self._taps = [tap for tap in self._taps if tap.stream() is not None]
        streams = [tap.stream() for tap in self._taps]
        for stream in (sys.stdout, sys.stderr):
            if stream is None or any(stream is known for known in streams):
                continue
            if len(self._taps) >= _MAX_STREAMS:
                # The script replaces it again and again: release the oldest one.
                self._taps.pop(0).let_go()
            tap = _Tap(stream, next(self._numbers), self._printed, self._longest)
            if tap.is_on:
                self._taps.append(tap)
                streams.append(stream)

    def let_go(self) -> None:
        """Restore each stream's own `write`, unless it was replaced in the meantime."""
        while self._taps:
            self._taps.pop().let_go()

    def last_lines(self) -> list[str]:
        """Return the last lines of all streams together, as a terminal would show them, with secrets masked."""
        begun: dict[int, list[str]] = {}
        lines: list[str] = []
        before: tuple[int, str] = (-1, "")
        for number, text in list(self._printed):
            if text == before[1] and number != before[0]:
                # One stream forwards to another: it was printed once.
                before = (-1, "")
                continue
            before = (number, text)
            first, *more = text.split("\n")
            # Joined once it is complete: a progress bar writes thousands of times to one line.
            begun.setdefault(number, []).append(first)
            if more:
                lines += ["".join(begun[number]), *more[:-1]]
                begun[number] = more[-1:]
        lines += ["".join(parts) for parts in begun.values()]
        shown = [_end_of(_as_shown(line), _SEARCHED) for line in lines]
        wanted = mask_secrets([line for line in shown if line.strip()][-self.lines :])
        return [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in wanted]


class _Tap:
    """The wrapper around the `write` of one stream."""

    def __init__(self, stream: Any, number: int, printed: deque[tuple[int, str]], longest: int) -> None:
        self.is_on = False
        own = getattr(stream, "__dict__", {})
        # Another wrapper, if there is one: it is restored later.
        self._before: Callable[[str], int] | None = own.get("write")
        original: Callable[..., int] = stream.write
        keep = printed.append

        # A custom stream may be called with other arguments than Python's.
        def write(*given: Any, **named: Any) -> int:
            text = given[0] if given else next(iter(named.values()), "")
            keep((number, text if type(text) is str and len(text) <= longest else _end_of(text, longest)))
            return original(*given, **named)

        # Weak references: a temporary replacement of the output may be large.
        self._write = weakref.ref(write)
        try:
            self.stream: Callable[[], Any] = weakref.ref(stream)
            stream.write = write
        except (AttributeError, TypeError):
            # Its class does not allow attributes.
            return
        self.is_on = own.get("write") is write

    def let_go(self) -> None:
        """Restore the stream's own `write`."""
        stream = self.stream()
        if stream is None or getattr(stream, "__dict__", {}).get("write") is not self._write():
            return
        if self._before is not None:
            stream.write = self._before
        else:
            del stream.write


def _end_of(text: Any, longest: int) -> str:
    """Return the end of a text, beginning with a whole word, as half a secret is not recognised."""
    if not isinstance(text, str):
        return ""
    return text if len(text) <= longest else f"… {text[-longest:].partition(' ')[2]}"


def _as_shown(line: str) -> str:
    """Return a line as a terminal shows it: a carriage return overwrites what was there."""
    parts = [part for part in line.split("\r") if part]
    return _CONTROL.sub("", parts[-1]) if parts else ""


class SharedTail:
    """One tail for all loggers of the process: two of them would wrap each other."""

    def __init__(self) -> None:
        self._tail: OutputTail | None = None
        self._wanted: dict[int, int] = {}

    def join(self, owner: object, lines: int, guard: Guard) -> None:
        """Keep the last `lines` lines for `owner` from now on."""
        if not lines:
            return
        self._wanted[id(owner)] = lines
        with guard.catch("capturing the output"):
            if self._tail is None or lines > self._tail.lines:
                if self._tail is not None:
                    self._tail.let_go()
                self._tail = OutputTail(lines)
            self._tail.follow()

    def follow(self) -> None:
        """Wrap a stream that was replaced."""
        tail = self._tail
        if tail is not None:
            tail.follow()

    def leave(self, owner: object) -> None:
        """Stop for `owner`; with the last one, the streams' own `write` is restored."""
        if self._wanted.pop(id(owner), None) is not None and not self._wanted and self._tail is not None:
            tail, self._tail = self._tail, None
            tail.let_go()

    def last_lines(self, owner: object) -> list[str]:
        """Return the last lines of output, as many as `owner` asked for."""
        wanted, tail = self._wanted.get(id(owner), 0), self._tail
        return tail.last_lines()[-wanted:] if tail is not None and wanted else []
