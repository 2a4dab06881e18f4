"""Follows the record file in the background, and hands its records to one sink.

The file itself is the queue: a sink that is slow or hangs is late, and costs no memory and no record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from toolkit.telemetry.core.background import FILES, background_job, own_thread_job
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.sink import DeliveringSink, Sink
from toolkit.telemetry.runfolder.reader import Chunk, Cursor, read_from, read_shared

_READ_BYTES = 128 * 1024
_GIVE_UP_AFTER = 5
_MAX_PAUSE_S = 30.0
_URGENT_PAUSE_S = 0.5
_IDLE_AFTER_S = 1.0
_LOOK_AGAIN_S = 0.05
_LAST_TRIES_S = 0.1
"""Seconds between the tries of a run that is being closed."""
_PATIENCE_S = 1.0
"""Seconds that a mirror waits, all in all, for lines to become records again."""


class Mirror:
    """Follows `record_file` from `cursor` on for `sink`.

    A sink that fails is retried after a pause. A network or disk that is away (an `OSError`) may come back, and is
    retried for as long as the run lasts. One that is `optional` and otherwise fails five times in a row is turned off,
    and `on_off` is given the reason. `caught_up` is called each time that the sink has everything that is in the file.

    A sink that is `ours` is called on the threads that all loggers share. The code of others may expect to be called on
    the same thread each time, as a database's connection does, and has one of its own.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        record_file: Path,
        start_at: Callable[[], int],
        guard: Guard,
        optional: bool,
        on_off: Callable[[str, str], None],
        interval_s: float = 0.5,
        caught_up: Callable[[], None] | None = None,
        ours: bool = False,
    ) -> None:
        self.sink = sink
        self._record_file = record_file
        self._start_at = start_at
        self._guard = guard
        self._interval_s = interval_s
        self._optional = optional
        self._on_off = on_off
        self._caught_up = caught_up
        self._cursor: Cursor | None = None
        self._read_at = time.monotonic()
        """When there last were new records."""
        self._failures = 0
        self._faults = 0
        self._longest_pause_s: float = getattr(sink, "longest_pause_s", _MAX_PAUSE_S)
        self._urgent_until = 0.0
        self._patience_s = _PATIENCE_S
        # The code of others may change the records that it is given.
        self._read_file = read_shared if getattr(sink, "only_reads", False) else read_from
        self._closing = False
        self._last_try = False
        self._has_said_what_is_left_out = False
        self._is_behind = False
        """Whether the sink lacks something that was not said before."""
        self._off = False
        name = f"telemetry-{sink.name}"
        self._job = (
            background_job(name, self._turn, FILES, record_file.parents[1])
            if ours
            else own_thread_job(name, self._turn)
        )

    def start(self) -> None:
        """Begin."""
        self._job.start()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the sink has what is in the file now; False where it did not get there in time."""
        self._urgent_until = time.monotonic() + timeout_s
        return self._job.flush(timeout_s) or (self._off and self._job.is_started)

    @property
    def is_away(self) -> bool:
        """Whether its last tries have all failed, so that waiting for it is of little use."""
        return self._optional and self._failures >= _GIVE_UP_AFTER

    def give_up(self, timeout_s: float) -> int:
        """Hand over nothing more; count, for at most `timeout_s`, the records that its sink has not delivered."""
        self._off, self._is_behind = True, False
        self._job.wake()
        sink = self.sink
        if not isinstance(sink, DeliveringSink):
            return 0
        sink.give_up()
        deadline = time.monotonic() + timeout_s
        cursor, undelivered = self._cursor or Cursor(self._start_at()), 0
        while True:
            chunk = read_from(self._record_file, cursor, max_bytes=_READ_BYTES)
            undelivered += sum(map(sink.is_undelivered, chunk.records))
            if chunk.cursor.offset == cursor.offset or time.monotonic() > deadline:
                return undelivered
            cursor = chunk.cursor

    def end(self) -> None:
        """Begin to close; what fails is tried again until `close` gives up. One that is away is tried once."""
        self._last_try = self._last_try or (self.is_away and not self._closing)
        self._closing = True
        self._job.wake()

    def close(self, timeout_s: float) -> bool:
        """Hand over what is left, close the sink and stop; False where the sink did not take it all in time."""
        self.end()
        # Where the system refused a thread, a mirror is left to `repair`.
        if self._job.is_started and self._job.join(timeout_s):
            return not self._is_behind
        self._last_try = True
        self._job.wake()
        return False

    def _turn(self) -> float | None:
        has_ended_itself = True
        try:
            is_last = self._off or self._follow_to_the_end()
            has_ended_itself = False
        finally:
            if has_ended_itself:
                # The sink raised SystemExit or the like: a library that behaves like a program.
                self._off = True
                self._say_it_is_off("it ended its own thread")
        if not (is_last or self._off) or not self._close_sink():
            return self._pause()
        self._off = True
        return None

    def _close_sink(self) -> bool:
        """Close the sink; False where that is to be tried again."""
        error = self._failure_of("closing", self.sink.close)
        self._is_behind = self._is_behind or error is not None
        return not isinstance(error, OSError) or self._last_try or self._off

    def _failure_of(self, doing: str, do: Callable[[], None]) -> Exception | None:
        """Return what `do` raised, which is reported; None where it was done."""
        try:
            do()
        except Exception as error:  # noqa: BLE001 - the guard takes it
            self._guard.take(f"{doing} {self.sink.name}", error)
            return error
        return None

    def _follow_to_the_end(self) -> bool:
        """Hand over what is in the file; return whether this was the last turn."""
        is_last = self._closing
        handed = self._follow()
        self._is_behind = not (handed or self._off)
        if handed:
            self._job.note_flushed()
        return is_last and (handed or self._last_try)

    def _pause(self) -> float:
        # Seldom where nothing comes, so that an idle run wakes no thread for it.
        is_idle = time.monotonic() - self._read_at > _IDLE_AFTER_S
        pause = min(self._interval_s * 2.0 ** min(self._failures + is_idle, 60), self._longest_pause_s)
        pause = max(pause, getattr(self.sink, "rest_until", 0.0) - time.monotonic())
        if self._closing:
            return _LAST_TRIES_S
        is_urgent = time.monotonic() < self._urgent_until
        return min(pause, _URGENT_PAUSE_S) if is_urgent else pause

    def _follow(self) -> bool:
        """Hand over everything that is in the file; False where the sink failed."""
        error = self._failure_of("writing to", self._hand_over)
        if error is None:
            self._failures = self._faults = 0
            leaves_out = getattr(self.sink, "leaves_out", "")
            if leaves_out and not self._has_said_what_is_left_out:
                self._has_said_what_is_left_out = True
                self._guard.report(f"writing to {self.sink.name}", OSError(leaves_out))
            return True
        self._failures += 1
        self._faults += not isinstance(error, OSError)
        if self._optional and self._faults >= _GIVE_UP_AFTER:
            self._off = True
            self._say_it_is_off(f"it failed {self._failures} times in a row")
        return False

    def _say_it_is_off(self, why: str) -> None:
        with self._guard.catch(f"switching {self.sink.name} off"):
            self._on_off(self.sink.name, why)

    def _hand_over(self) -> None:
        if self._cursor is None:
            self._cursor = Cursor(self._start_at())
        while True:
            try:
                chunk = self._read(self._cursor)
            except FileNotFoundError:
                return
            if chunk.records:
                self._read_at = time.monotonic()
                self.sink.write(chunk.records)
            if chunk.cursor.offset == self._cursor.offset and not chunk.replaced:
                self._cursor = chunk.cursor
                if self._caught_up is not None:
                    self._caught_up()
                return
            self._cursor = chunk.cursor

    def _read(self, cursor: Cursor) -> Chunk:
        """Read on, and again for a while where a line is no record: after a failed sync it may come back."""
        chunk = self._read_file(self._record_file, cursor, max_bytes=_READ_BYTES)
        while chunk.bad_count and self._patience_s > 0.0:
            time.sleep(_LOOK_AGAIN_S)
            self._patience_s -= _LOOK_AGAIN_S
            chunk = self._read_file(self._record_file, cursor, max_bytes=_READ_BYTES)
        return chunk
