"""Takes a copy of what the script writes to `sys.stdout` and `sys.stderr`, for all who ask, with one wrapper a stream.

The objects in `sys.stdout` and `sys.stderr` stay there: only their `write` is wrapped. A stream that replaces one of
them later is wrapped too; one that cannot be wrapped is left alone.

The descriptors stay as they are. A pipe in their place would show what C code writes too, but whoever reads it needs
the interpreter's lock: with that held, a full pipe stops the training. And a pipe is no terminal, so progress bars
would look different. `native_output.py` has what can be had without that.
"""

from __future__ import annotations

import io
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
"""Takes a call of `write`: how many there were before in this process, its time if it ends a line, else 0, the number
of its stream, which is odd for standard error, and its text. Must not raise."""
Shorten = Callable[[str], str]


def is_forwarded(number: int, text: str, before: tuple[int, str]) -> bool:
    """Return whether a stream only handed on what another one of its kind got just before: it was printed once."""
    return text == before[1] and number != before[0] and number % 2 == before[0] % 2


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
                self.release()

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
                self._taps.pop(0).release()
            tap = _Tap(stream, 2 * next(self._numbers) + is_error, self._calls, self._count)
            if tap.is_on:
                self._taps.append(tap)
                streams.append(stream)

    def release(self) -> None:
        """Restore each stream's own `write`, unless it was replaced in the meantime."""
        while self._taps:
            self._taps.pop().release()


TAPS: Final = StreamTaps()
"""Those of this process: two wrappers around one stream would be in each other's way."""


class _Tap:
    """The wrapper around the `write` of one stream.

    It is put into the stream's own attributes, past a `__setattr__`: one that hands on to another stream, as tqdm's
    does, would put it there, and the two would call each other for ever.
    """

    def __init__(
        self, stream: Any, number: int, takers: list[tuple[Put, Shorten]], counter: Iterator[int]
    ) -> None:
        own: Any = getattr(stream, "__dict__", None)
        self.is_on = isinstance(own, dict)
        if not self.is_on:
            # Its class does not allow attributes.
            return
        # Another wrapper, if there is one: it is restored later.
        self._before: Callable[[str], int] | None = own.get("write")
        original: Callable[..., int] = stream.write
        count, now = counter.__next__, time.time

        def note(text: Any) -> None:
            if isinstance(text, str):
                nth = count()
                for put, shorten in takers:
                    put((nth, now(), number, text if len(text) <= LONG else shorten(text)))

        # A call of this is most of what a flood of output costs, so that nothing is called that need not be.
        def write(text: Any, /) -> int:
            if type(text) is str and len(text) <= LONG:
                written = (count(), now() if "\n" in text else 0.0, number, text)
                for put, _ in takers:
                    put(written)
            else:
                note(text)
            return original(text)

        # A custom stream may take other arguments.
        def write_any(*given: Any, **named: Any) -> int:
            note(given[0] if given else next(iter(named.values()), ""))
            return original(*given, **named)

        tap = write if type(stream) is io.TextIOWrapper else write_any
        # Weak references: a temporary replacement of the output may be large.
        self._write = weakref.ref(tap)
        try:
            self.stream: Callable[[], Any] = weakref.ref(stream)
        except TypeError:
            self.is_on = False
        else:
            own["write"] = tap

    def release(self) -> None:
        """Restore the stream's own `write`."""
        own = getattr(self.stream(), "__dict__", {})
        if own.get("write") is not self._write() or not own:
            return
        if self._before is not None:
            own["write"] = self._before
        else:
            del own["write"]
