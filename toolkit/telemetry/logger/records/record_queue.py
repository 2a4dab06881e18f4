"""Records taken from callers: numbered, encoded and safe from a kill before the call returns.

A record that waits for a device's numbers, and all that come after it, wait in memory in the order of the calls.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from toolkit.telemetry.core.guard import LateError
from toolkit.telemetry.logger.records.device_scalars import PendingScalar
from toolkit.telemetry.privacy.record_masking import RecordMasker
from toolkit.telemetry.runfolder.codec import MANY_FIELDS, count_left_out, decode, encode
from toolkit.telemetry.runfolder.journal.journal import Journal
from toolkit.telemetry.runfolder.records import (
    CONTROL_CHANGE,
    END,
    ERROR,
    FINDING,
    LEDGER,
    LOST,
    MESSAGE,
    SPAN,
    SPAN_EVENT,
    SPAN_START,
    START,
    STATE,
    UNENCODABLE,
)

# What explains a run is kept when metrics no longer are.
_KEPT_LONGEST: Final = frozenset(
    {START, END, ERROR, LOST, CONTROL_CHANGE, FINDING, SPAN, SPAN_START, SPAN_EVENT, LEDGER, STATE}
)
_RESERVE_BYTES: Final = 1024 * 1024
_MAX_WAITING: Final = 20_000
_MAX_REFILL: Final = 1_000
_DEVICE_TIMEOUT_S: Final = 60.0
MUCH: Final = 300_000
"""Bytes in the journal at which the writer is woken before its time."""


_Finish = Callable[[dict[str, Any]], dict[str, Any] | None]


@dataclass(slots=True, eq=False)
class Waiting:
    """A record that waits for its device numbers, or after one that does."""

    event: str
    wall: float
    elapsed: float
    fields: dict[str, Any]
    pending: dict[str, PendingScalar]
    finish: _Finish | None


class RecordQueue:
    """Numbers records, encodes them and commits them to the journal, one at a time, in the order of the calls.

    Callers may be on any thread, and in a signal handler that interrupts a call. Nothing here waits for a disk.
    `StepRecords` commits the line of a usual step itself: with `lock` held, where `is_direct` and not `busy`.

    With `awaits_start` the first number is kept for the session's start record. What comes before that is in the
    journal at once, and goes to the writer after it.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        first_seq: int,
        session: int,
        rank: int,
        queue_max_bytes: int,
        wake: Callable[[], None],
        awaits_start: bool = False,
        on_left_out: Callable[[int], None] = lambda _: None,
    ) -> None:
        journal.next_seq = first_seq + awaits_start
        self.held_since: float | None = None
        """Since which time of the session records wait in the journal for the start record; None where none do."""
        self.dropped_total = 0
        self.values_lost = 0
        """Values that their records had no room for."""
        self._on_left_out = on_left_out
        self.journal = journal
        self.session = session
        self.rank = rank
        self._wake_at: float = MUCH
        """Bytes in the journal at which the writer is woken: any where it sleeps, and none once it was woken."""
        self._wake = wake
        self._queue_max_bytes = queue_max_bytes
        self.lock = threading.RLock()
        self.busy = False
        """Whether a call is under way: one that comes then is in a signal handler, and goes right after it."""
        self.is_direct = rank == 0 and not awaits_start
        """Whether a step that comes now can go straight to the journal: the start record is there, no record waits
        before it, and this is rank 0."""
        self.interrupting: deque[Waiting] = deque()
        self._waiting: deque[Waiting] = deque()
        self._overflow: deque[bytes] = deque()
        self._overflow_bytes = 0
        self._dropped: _Dropped | None = None
        self.masker = RecordMasker()
        self._start_seq: int | None = first_seq if awaits_start else None
        self._start_line = b""

    def put(
        self,
        event: str,
        wall: float,
        elapsed: float,
        fields: dict[str, Any],
        pending: dict[str, PendingScalar] | None = None,
        *,
        finish: _Finish | None = None,
        is_masked: bool = False,
    ) -> None:
        """Take one record. `fields` is plain, and belongs to the queue from now on.

        `finish` is given the fields once they are all known, in the order of the calls, and returns what is to be
        written, or None for nothing. Secrets in them are masked here, unless all in it `is_masked` already.
        """
        if finish is None and not is_masked:
            # Before the lock is taken: a long text takes its time.
            event, fields = self.masker.mask_name(event), self.masker.mask_record(fields)
        # A signal handler may raise out of any line, but not between `with` and its block.
        with self.lock:
            lost_before = self.values_lost
            if self.journal.is_closed:
                if event not in _KEPT_LONGEST and event != MESSAGE:
                    raise LateError
                # Telemetry itself has nothing to say any more.
                return
            if self.busy:
                # A signal handler that logs has interrupted a call of its own thread: it comes right after it.
                self.interrupting.append(Waiting(event, wall, elapsed, fields, pending or {}, finish))
                return
            try:
                self.busy = True
                if pending or self._waiting:
                    self._wait(Waiting(event, wall, elapsed, fields, pending or {}, finish))
                    self._settle(elapsed)
                else:
                    done = fields if finish is None else self._finished(finish, fields)
                    if done is not None:
                        self._commit(event, wall, elapsed, done)
                if self.interrupting:
                    self.take_interrupting()
            finally:
                self.busy = False
                self._look_whether_direct()
            lost = self.values_lost - lost_before
        if lost:
            self._on_left_out(lost)

    def commit_line(self, line: bytes, event: str, seq: int) -> None:
        """Append a line with the number `seq` to the journal, or keep it in memory where that is full."""
        fill = 0 if self._overflow else self.journal.append(line)
        if not fill:
            self._hold(line, event, seq)
        elif fill > self._wake_at:
            self._wake_writer()

    @property
    def next_seq(self) -> int:
        """The number of the next record."""
        return self.journal.next_seq

    def envelope(self, event: str, wall: float, elapsed: float, seq: int) -> dict[str, Any]:
        """Return the fields that every record begins with."""
        found = {"event": event, "time": wall, "elapsed": elapsed, "seq": seq, "session": self.session}
        return {**found, "rank": self.rank} if self.rank else found

    def _wake_writer(self) -> None:
        """Have the writer come before its time."""
        self._wake_at = math.inf
        self._wake()

    def may_writer_sleep(self) -> bool:
        """Whether there is nothing to write; then the next record wakes the writer."""
        with self.lock:
            if self.is_empty:
                self._wake_at = 0
            return self.is_empty

    @property
    def is_waiting(self) -> bool:
        """Whether a record waits for a value that a device has not delivered yet."""
        return bool(self._waiting)

    def settle(self, elapsed: float, *, give_up: bool = False) -> None:
        """Write out what no longer waits; with `give_up`, write the rest too and say what is missing."""
        if not self._waiting:
            return
        with self.lock:
            if not self.busy:
                try:
                    self.busy = True
                    self._settle(elapsed, give_up=give_up)
                finally:
                    self.busy = False
                    self._look_whether_direct()

    @property
    def last_seq(self) -> int:
        """The newest number that a record has."""
        return self.next_seq - (1 if self._start_seq is None or self.held_since is not None else 2)

    @property
    def is_held_up(self) -> bool:
        """Whether anything waits for the start record, or for a device before it."""
        return self._start_seq is not None and not self.is_empty

    def await_no_start(self) -> None:
        """Let the writer have what waits for the start record, whether or not there is one."""
        with self.lock:
            self._start_seq = self.held_since = None
            self._look_whether_direct()

    def take_batch(self) -> bytes | None:
        """Hand the writer the next whole lines; None where there are none, or they wait for the start record."""
        with self.lock:
            if self._start_seq is not None:
                return None
            self._wake_at = MUCH
            batch = self.journal.flip()
            if self._start_line and batch is not None:
                batch = _with_first(self._start_line, batch)
                self._start_line = b""
            if self._overflow:
                self._refill()
                if batch is None:
                    batch = self.journal.flip()
                self._look_whether_direct()
            return batch

    def batch_written(self) -> None:
        """Release the last batch, which is in the record file."""
        self.journal.release()

    @property
    def is_empty(self) -> bool:
        """Whether everything taken was handed to the writer."""
        return not (self._waiting or self._overflow or self.journal.fill)

    @property
    def lines_in_memory(self) -> bytes:
        """The lines that wait for room in the journal."""
        return b"".join(self._overflow)

    def after_fork_in_child(self) -> None:
        """Forget the parent's lock: the thread that held it does not exist here."""
        self.lock = threading.RLock()

    def _commit(self, event: str, wall: float, elapsed: float, fields: dict[str, Any]) -> None:
        # Said once there is room again, so that one record speaks of them all.
        has_room = self._overflow_bytes <= self._queue_max_bytes // 2
        if self._dropped is not None and has_room and event != LOST:
            self._say_what_was_dropped(wall, elapsed)
        if self._start_seq is not None:
            if event == START and not self._overflow and self._commit_start(wall, elapsed, fields):
                return
            self.held_since = elapsed if self.held_since is None else self.held_since
        seq = self.journal.next_seq
        record = self.envelope(event, wall, elapsed, seq)
        record.update(fields)
        line = encode(record)
        if UNENCODABLE in record or len(record) > MANY_FIELDS:
            self.values_lost += count_left_out(decode(line).get(UNENCODABLE))
        self.commit_line(line, event, seq)

    def _commit_start(self, wall: float, elapsed: float, fields: dict[str, Any]) -> bool:
        """Commit the session's start record under the number that was kept for it; False where there is no room."""
        seq = self._start_seq
        assert seq is not None
        line = encode({**self.envelope(START, wall, elapsed, seq), **fields})
        # Before it is there: a signal handler may raise after any line, and no number is given twice.
        self._start_line = line if self.held_since is not None else b""
        self._start_seq = self.held_since = None
        return self.journal.append(line, numbers=0) > 0

    def _hold(self, line: bytes, event: str, seq: int) -> None:
        """Keep a line in plain memory until the journal has room, if there is room here."""
        self.journal.next_seq = seq + 1
        room = self._queue_max_bytes + (_RESERVE_BYTES if event in _KEPT_LONGEST else 0)
        if self._overflow_bytes + len(line) <= room:
            # A copy: the line as orjson has made it keeps 8 KiB of memory, however short it is.
            self._overflow.append(bytes(memoryview(line)))
            self._overflow_bytes += len(line)
            self._wake_writer()
        else:
            self._drop(seq)
        self._look_whether_direct()

    def end(self) -> None:
        """Take no more records."""
        with self.lock:
            self.journal.is_closed, self.is_direct = True, False

    def take_interrupting(self) -> None:
        """Take what a signal handler logged while this thread was busy here."""
        while self.interrupting:
            interrupting = self.interrupting.popleft()
            self._wait(interrupting)
            self._settle(interrupting.elapsed)
        self._look_whether_direct()

    def _look_whether_direct(self) -> None:
        self.is_direct = (
            not self.rank
            and self._start_seq is None
            and not self._waiting
            and not self._overflow
            and self._dropped is None
        )

    def _drop(self, seq: int) -> None:
        self.dropped_total += 1
        first, count = (seq, 0) if self._dropped is None else (self._dropped.first, self._dropped.records)
        self._dropped = _Dropped(first, seq, count + 1)

    def _say_what_was_dropped(self, wall: float, elapsed: float) -> None:
        dropped, self._dropped = self._dropped, None
        assert dropped is not None
        fields = {
            "records": dropped.records,
            "reason": "the disk took no records and the memory kept for them was full",
            "from_seq": dropped.first,
            "to_seq": dropped.last,
        }
        self._commit(LOST, wall, elapsed, fields)

    def say_what_was_dropped(self, wall: float, elapsed: float) -> None:
        """Write the `lost` record of what was dropped so far, if anything was, whether or not there is room."""
        with self.lock:
            if self._dropped is not None:
                held, self._queue_max_bytes = self._queue_max_bytes, 2**62
                self._say_what_was_dropped(wall, elapsed)
                self._queue_max_bytes = held
                self._look_whether_direct()

    def _refill(self) -> None:
        """Move what waits in plain memory into the empty half, where a kill does not reach it."""
        for _ in range(min(len(self._overflow), _MAX_REFILL)):
            line = self._overflow[0]
            if not self.journal.append(line, numbers=0):
                return
            self._overflow.popleft()
            self._overflow_bytes -= len(line)

    def _wait(self, waiting: Waiting) -> None:
        if len(self._waiting) >= _MAX_WAITING and waiting.event not in _KEPT_LONGEST:
            self._drop(self.journal.next_seq)
            self.journal.next_seq += 1
            return
        self._waiting.append(waiting)
        if not self._wake_at:
            self._wake_writer()

    def _settle(self, elapsed: float, *, give_up: bool = False) -> None:
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            if first.pending and not self._deliver(first):
                if not give_up and elapsed - first.elapsed < _DEVICE_TIMEOUT_S:
                    return
                notes = dict.fromkeys(first.pending, "its device did not deliver it")
                first.fields[UNENCODABLE] = {**first.fields.get(UNENCODABLE, {}), **notes}
                first.pending = {}
            waiting.popleft()
            done = first.fields if first.finish is None else self._finished(first.finish, first.fields)
            if done is not None:
                self._commit(first.event, first.wall, first.elapsed, done)

    def _finished(self, finish: _Finish, fields: dict[str, Any]) -> dict[str, Any] | None:
        # A step that is folded is not written, so nothing is looked for in it.
        done = finish(fields)
        return None if done is None else self.masker.mask_record(done)

    def _deliver(self, waiting: Waiting) -> bool:
        for name in list(waiting.pending):
            value = waiting.pending[name].poll()
            if value is None:
                return False
            waiting.fields[name] = value
            del waiting.pending[name]
        return True


def _with_first(line: bytes, batch: bytes) -> bytes:
    """Return `batch` with one of its lines in front of the others."""
    at = batch.find(line)
    return batch if at <= 0 else line + batch[:at] + batch[at + len(line) :]


class _Dropped(NamedTuple):
    first: int
    last: int
    records: int
