"""Takes a copy of what the script writes to `sys.stdout` and `sys.stderr`, for all who ask, with one wrapper a stream.

The objects in `sys.stdout` and `sys.stderr` stay there: only their `write` is wrapped. A stream that replaces one of
them later is wrapped too; one that cannot be wrapped is left alone.

The descriptors stay as they are. A pipe in their place would show what C code writes too, but whoever reads it needs
the interpreter's lock: with that held, a full pipe stops the training. And a pipe is no terminal, so progress bars
would look different.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

_MAX_STREAMS: Final = 8
_MOST_WAITING: Final = 16_384
"""Writes that wait at one time; the oldest go first, as the last lines before a failure are the ones to have."""
_LONG: Final = 250
_MOST_LONG: Final = 1_000_000
"""Characters of texts longer than `_LONG` that wait at one time."""
_FLOOD_BLOCKS: Final = 16
"""While more of them come from one look to the next, output is taken in blocks."""
_MOST_BLOCKS: Final = 128
"""Blocks that wait at one time, some 8 KB each."""
_WAIT_S: Final = 1.0

Write = tuple[int, str]
"""The number of a stream, which is odd for standard error, and a text that was written to it."""
GAP: Final[Write] = (-1, "")
"""In the place of writes that may have been lost."""
Take = Callable[[Sequence[Write]], object]


def is_forwarded(number: int, text: str, before: Write) -> bool:
    """Return whether a stream only handed on what another one of its kind got just before: it was printed once."""
    return text == before[1] and number != before[0] and number % 2 == before[0] % 2


class StreamTaps:
    """The wrapped streams, and who gets a copy. With the last of them the streams are restored."""

    def __init__(self) -> None:
        self._takers: dict[int, Take] = {}
        self._taps: list[_Tap] = []
        self._made = 0
        self._written: deque[Write] = deque(maxlen=_MOST_WAITING)
        self._long = 0
        # One at a time, or the order would be lost.
        self._handing_on = threading.Lock()

    def join(self, owner: object, take: Take) -> None:
        """Have `hand_on` call `take` with what is written from now on."""
        self.hand_on()
        self._takers[id(owner)] = take
        self.follow()

    def leave(self, owner: object) -> None:
        """Stop for `owner`, who gets what was written until now."""
        if id(owner) in self._takers:
            self.hand_on()
            self._takers.pop(id(owner), None)
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
            tap = _Tap(stream, 2 * self._made + is_error, self._written, self._shortened)
            self._made += 1
            if tap.is_on:
                self._taps.append(tap)
                streams.append(stream)

    def hand_on(self) -> None:
        """Give everyone what was written since this was last called."""
        # Limited: a signal handler may have interrupted this very thread here.
        if not self._handing_on.acquire(timeout=_WAIT_S):
            return
        try:
            blocks = sum([tap.end_flood() for tap in self._taps])
            self._long = 0
            taken: list[Write] = []
            for _ in range(_MOST_WAITING):
                if not self._written:
                    break
                write = self._written.popleft()
                if len(self._written) >= _MOST_WAITING - 1:
                    # It was full: older ones may have gone.
                    taken.append(GAP)
                taken.append(write)
            if blocks > _FLOOD_BLOCKS or taken[:1] == [GAP]:
                for tap in self._taps:
                    tap.begin_flood()
            for take in list(self._takers.values()):
                take(taken)
        finally:
            self._handing_on.release()

    def stop_in_forked_child(self) -> None:
        """Stop for everyone: what a child prints is its own."""
        self._handing_on = threading.Lock()
        self._takers.clear()
        self._written.clear()
        for tap in self._taps:
            # What the stream still holds is the parent's to write.
            tap.end_flood(flushes=False)
        self.release()

    def release(self) -> None:
        """Restore each stream's own `write`, unless it was replaced in the meantime."""
        while self._taps:
            self._taps.pop().release()

    def _shortened(self, text: str) -> str:
        """Return a long text, without its middle where too much waits, on the thread that prints it."""
        room = max(_LONG, _MOST_LONG - self._long) // 2
        self._long += min(len(text), 2 * room)
        if len(text) <= 2 * room:
            return text
        # Whole words: half a secret would not be recognised as one.
        begin, end = text[:room].rpartition(" ")[0], text[-room:].partition(" ")[2]
        return f"{begin} … ({len(text) - len(begin) - len(end):,} characters were cut) … {end}"


TAPS: Final = StreamTaps()
"""Those of this process: two wrappers around one stream would be in each other's way."""


class _Tap:
    """The wrapper around the `write` of one stream.

    It is put into the stream's own attributes, past a `__setattr__`: one that hands on to another stream, as tqdm's
    does, would put it there, and the two would call each other for ever.
    """

    def __init__(
        self, stream: Any, number: int, queue: deque[Write], shortened: Callable[[str], str]
    ) -> None:
        self._number, self._queue, self._shortened = number, queue, shortened
        self._blocks = 0
        self._write_one: Any = None
        """What takes each write; set while blocks are taken instead."""
        put = queue.append
        own: Any = getattr(stream, "__dict__", None)
        self.is_on = isinstance(own, dict)
        if not self.is_on:
            # Its class does not allow attributes.
            return
        # Another wrapper, if there is one: it is restored later.
        self._before: Callable[[str], int] | None = own.get("write")
        original: Callable[..., int] = stream.write

        # A call of this is most of what printing costs, so that nothing is called that need not be.
        def write(text: Any, /) -> int:
            written = original(text)
            put((number, text if written <= _LONG else shortened(text)))
            return written

        # A custom stream may take other arguments, and return anything.
        def write_any(*given: Any, **named: Any) -> int:
            written = original(*given, **named)
            text = given[0] if given else next(iter(named.values()), "")
            if isinstance(text, str):
                put((number, text if len(text) <= _LONG else shortened(text)))
            return written

        tap = write if type(stream) is io.TextIOWrapper else write_any
        # Weak references: a temporary replacement of the output may be large.
        self._write = weakref.ref(tap)
        try:
            self.stream: Callable[[], Any] = weakref.ref(stream)
        except TypeError:
            self.is_on = False
        else:
            own["write"] = tap

    def begin_flood(self) -> None:
        """Take what the stream hands to its buffer, hundreds of writes at once, instead of each write."""
        stream, queue = self.stream(), self._queue
        own = getattr(stream, "__dict__", {})
        if (
            type(stream) is not io.TextIOWrapper
            or stream.write_through
            or own.get("write") is not self._write()
        ):
            return
        buffer: Any = stream.buffer
        if type(buffer) is not io.BufferedWriter or vars(buffer):
            return
        original, encoding, waiting = buffer.write, stream.encoding, len(queue)

        def write_block(block: bytes, /) -> int:
            self._blocks += 1
            if len(queue) >= _MOST_BLOCKS:
                queue.clear()
                queue.append(GAP)
            queue.append((self._number, self._shortened(str(block, encoding, "replace"))))
            written: int = original(block)
            return written

        with suppress(OSError, ValueError):
            stream.flush()
        while len(queue) > waiting and queue[-1][0] == self._number:
            # Another thread wrote it meanwhile: it comes again with the first block.
            queue.pop()
        self._write_one = own.pop("write")
        vars(buffer)["write"] = write_block

    def end_flood(self, *, flushes: bool = True) -> int:
        """Take each write again, and what the stream still holds; return how many blocks it has handed on."""
        stream, write_one = self.stream(), self._write_one
        if write_one is None or stream is None:
            return 0
        vars(stream).setdefault("write", write_one)
        with suppress(OSError, ValueError):
            if flushes:
                stream.flush()
        with suppress(ValueError):
            vars(stream.buffer).pop("write", None)
        self._write_one, blocks, self._blocks = None, self._blocks, 0
        return blocks

    def release(self) -> None:
        """Restore the stream's own `write`."""
        self.end_flood()
        own = getattr(self.stream(), "__dict__", {})
        if own.get("write") is not self._write() or not own:
            return
        if self._before is not None:
            own["write"] = self._before
        else:
            del own["write"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TAPS.stop_in_forked_child)
