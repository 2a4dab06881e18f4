"""Writes the batches of a session to their file, each with the step that it was trained in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from toolkit.telemetry.core.background import FILES, background_job
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.records.batch_values import Losses
from toolkit.telemetry.logger.records.step_gate import NEVER, StepGate
from toolkit.telemetry.logger.writing.session_folder import SessionFolder
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.evidence.batches import NO_STEP, BatchRow, batches_file, encode_rows
from toolkit.telemetry.runfolder.records import BATCHES_DROPPED
from toolkit.telemetry.runfolder.safefile import NO_FILE, append_all

_EVERY_S: Final = 1.0
_MOST_WAITING: Final = 4096
"""Batches in memory while the disk takes none."""
_MOST_OF_A_STEP: Final = 1024
"""So many batches without a step belong to a loop that logs none."""
MOST_BYTES: Final = 256 << 20

_Given = tuple[list[int], "int | None", BatchRow, "Losses | None"]
"""The last step before a batch and the next one once it is logged, the step that the caller named, the batch, losses.
The first is the same object for all batches of a step."""


class BatchWriter:
    """Takes batches on the training's thread and appends them to their file every second, in the background.

    A batch belongs to the step that is logged next. If the loop logs only some of its steps, and the batches between
    two of them can be spread evenly over the steps between, they are.
    """

    def __init__(
        self,
        session_folder: SessionFolder,
        gate: StepGate,
        put: Callable[[str, Mapping[str, Any]], None],
        guard: Guard,
    ) -> None:
        self._path = batches_file(session_folder.folder, session_folder.rank)
        self._mode = session_folder.modes.file
        self._session = session_folder.session.session
        self._gate = gate
        self._put = put
        self._guard = guard
        self._given: deque[_Given] = deque()
        self._masker = Masker()
        self._steps = [-NEVER]
        self._held: list[_Given] = []
        """Those of the step that is under way."""
        self._chunk, self._in_chunk = b"", 0
        self._size: int | None = None
        self._identity = NO_FILE
        self._lost = 0
        self._is_full = False
        self._job = background_job("telemetry-batches", self._turn, FILES, session_folder.folder.parent)
        self._job.start(_EVERY_S)

    def take(self, row: BatchRow, step: int | None, losses: Losses | None = None) -> None:
        """Take a batch of `step`, or of the next one that is logged."""
        if len(self._given) >= _MOST_WAITING:
            self._lost += 1
        else:
            gate = self._gate
            if len(self._steps) > 1 or self._steps[0] != gate.last_step:
                self._steps = [gate.last_step]
            self._given.append((self._steps, step, row, losses))
            if step is None:
                # So that the step is looked at closely.
                gate.awaiting, gate.due_at = self._steps, -NEVER

    def flush(self, timeout_s: float) -> bool:
        """Write the batches whose step is logged; return whether that was done in time."""
        return self._job.flush(timeout_s) and not self._chunk

    def close(self, timeout_s: float) -> None:
        """Write what is left, and record what the disk did not take in time."""
        self._job.close(timeout_s)
        left = self._in_chunk + len(self._held) + len(self._given) + self._lost
        if left:
            self._put(BATCHES_DROPPED, {"count": left, "reason": "the disk did not take them in time"})

    def _turn(self) -> float | None:
        is_last = self._job.is_closing
        with self._guard.catch("writing the batches"):
            self._write(is_last=is_last)
        self._job.note_flushed()
        return None if is_last else _EVERY_S

    def _write(self, *, is_last: bool) -> None:
        # What the disk refused comes first.
        self._append()
        rows = self._with_steps(is_last=is_last)
        if rows:
            self._chunk, self._in_chunk = self._encode(rows), len(rows)
            self._append()
        if self._lost:
            lost, self._lost = self._lost, 0
            self._put(BATCHES_DROPPED, {"count": lost, "reason": "the disk took none for too long"})

    def _with_steps(self, *, is_last: bool) -> list[tuple[int, BatchRow]]:
        """Take the batches whose step is known, which is the last one logged before the batches after them."""
        # First: then all batches before that step are among those that are taken now.
        newest = self._gate.last_step
        for _ in range(len(self._given)):
            self._held.append(self._given.popleft())
        groups = [list(group) for _, group in groupby(self._held, key=lambda given: id(given[0]))]
        self._held = []
        found: list[tuple[int, BatchRow]] = []
        for number, group in enumerate(groups):
            before, *known = group[0][0]
            after = groups[number + 1][0][0][0] if number + 1 < len(groups) else newest
            after = known[0] if known else after
            if after == before:
                if not is_last and len(group) <= _MOST_OF_A_STEP and any(one[1] is None for one in group):
                    self._held = group
                    break
                after = NO_STEP
            found += [
                (step if named is None else named, self._with_losses(row, losses))
                for (_, named, row, losses), step in zip(
                    group, _spread(before, after, len(group)), strict=True
                )
            ]
        return found

    def _encode(self, rows: list[tuple[int, BatchRow]]) -> bytes:
        if self._size is None:
            self._size = self._path.stat().st_size if self._path.exists() else 0
        if self._size >= MOST_BYTES:
            if not self._is_full:
                self._is_full = True
                reason = f"{self._path.name} has {self._size:,} bytes: nothing more is kept"
                self._put(BATCHES_DROPPED, {"from_step": rows[0][0], "reason": reason})
            return b""
        return encode_rows(self._session, [(step, self._masked(row)) for step, row in rows])

    def _with_losses(self, row: BatchRow, losses: Losses | None) -> BatchRow:
        with self._guard.catch("fetching the losses of a batch"):
            return row if losses is None else replace(row, losses=losses())
        return row

    def _masked(self, row: BatchRow) -> BatchRow:
        if not row.ids or not isinstance(row.ids[0], str):
            return row
        # All at once: nearly always there is nothing to mask.
        text = "\n".join(map(str, row.ids))
        mask = self._masker.mask_name
        return row if mask(text) == text else replace(row, ids=[mask(str(one)) for one in row.ids])

    def _append(self) -> None:
        """Append the chunk. Raises OSError where the disk does not take it."""
        if self._chunk:
            self._identity, self._size = append_all(
                self._path, self._chunk, mode=self._mode, known=self._identity
            )
        self._chunk, self._in_chunk = b"", 0


def _spread(before: int, after: int, count: int) -> Sequence[int]:
    """Return the step of each of `count` batches between two logged steps."""
    steps = after - before
    if 0 <= before < after and count % steps == 0:
        return [before + 1 + number * steps // count for number in range(count)]
    return [after] * count
