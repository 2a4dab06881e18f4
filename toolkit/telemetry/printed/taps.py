"""Takes a copy of what the script writes to `sys.stdout` and `sys.stderr`, for all who ask, with one wrapper a stream.

The objects in `sys.stdout` and `sys.stderr` stay there: only their `write` is wrapped. A stream that replaces one of
them later is wrapped too; one that cannot be wrapped is left alone.

The descriptors stay as they are. A pipe in their place would show what C code writes too, but whoever reads it needs
the interpreter's lock: with that held, a full pipe stops the training. And a pipe is no terminal, so progress bars
would look different. `beside.py` has what can be had without that.
"""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

_MAX_STREAMS: Final = 8

LONG: Final = 1_000
"""Characters from which on a text is shortened before it is put."""
Put = Callable[[tuple[int, float, int, str]], object]
"""Takes a call of `write`: how many there were before in this process, its time, the number of its stream, which is odd
for standard error, and its text. Must not raise."""
Shorten = Callable[[str], str]


class StreamTaps:
    """The wrapped streams, and who gets a copy. With the last of them the streams are restored."""

    def __init__(self) -> None:
        self._takers: dict[int, tuple[Put, Shorten]] = {}
        self._calls: list[tuple[Put, Shorten]] = []
        self._taps: list[_Tap] = []
        self._numbers = itertools.count()
        self._count = itertools.count()

    def join(self, owner: object, put: Put, shorten: Shorten) -> int:
        """Call `put` for each write from now on, with a long text as `shorten` returns it; return the first count."""
        self._takers[id(owner)] = (put, shorten)
        self._calls[:] = self._takers.values()
        self.follow()
        # Everyone gets one with nothing in it: no count is missing from anyone's.
        first = next(self._count)
        for put, _ in self._calls:
            put((first, time.time(), 0, ""))
        return first

    def leave(self, owner: object) -> None:
        """Stop for `owner`."""
        if self._takers.pop(id(owner), None) is not None:
            self._calls[:] = self._takers.values()
            if not self._takers:
                self.let_go()

    def follow(self) -> None:
        """Wrap the current `sys.stdout` and `sys.stderr`; earlier ones stay wrapped."""
        if not self._takers:
            return
        self._taps = [tap for tap in self._taps if tap.stream() is not None]
        streams = [tap.stream() for tap in self._taps]
        for is_error, stream in enumerate((sys.stdout, sys.stderr)):
            if stream is None or any(stream is known for known in streams):
                continue
            if len(self._taps) >= _MAX_STREAMS:
                # The script replaces it again and again: release the oldest one.
                self._taps.pop(0).let_go()
            tap = _Tap(stream, 2 * next(self._numbers) + is_error, self._calls, self._count)
            if tap.is_on:
                self._taps.append(tap)
                streams.append(stream)

    def let_go(self) -> None:
        """Restore each stream's own `write`, unless it was replaced in the meantime."""
        while self._taps:
            self._taps.pop().let_go()


TAPS: Final = StreamTaps()
"""Those of this process: two wrappers around one stream would be in each other's way."""


class _Tap:
    """The wrapper around the `write` of one stream."""

    def __init__(
        self, stream: Any, number: int, takers: list[tuple[Put, Shorten]], counter: Iterator[int]
    ) -> None:
        self.is_on = False
        own = getattr(stream, "__dict__", {})
        # Another wrapper, if there is one: it is restored later.
        self._before: Callable[[str], int] | None = own.get("write")
        original: Callable[..., int] = stream.write

        # A custom stream may be called with other arguments than Python's.
        def write(*given: Any, **named: Any) -> int:
            text = given[0] if given else next(iter(named.values()), "")
            if isinstance(text, str):
                if len(text) <= LONG:
                    written = (count(), now(), number, text)
                    for put, _ in takers:
                        put(written)
                else:
                    nth = count()
                    for put, shorten in takers:
                        put((nth, now(), number, shorten(text)))
            return original(*given, **named)

        count, now = counter.__next__, time.time

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
