"""The batches that a run was trained on, in a file next to its records: how they are written, and read again.

Each line is a JSON array: session, step, then the ids of the samples, or a text with their number and the fingerprint
of what is in them, and at the end, where they are known, the losses of the samples:

    [1,7,[12,873],[0.25,0.5]]
    [1,8,"2:daab791db541e7a6"]
"""

from __future__ import annotations

import math
import re
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.telemetry.runfolder.codec import name_of_non_finite
from toolkit.telemetry.runfolder.layout import RANKS
from toolkit.telemetry.runfolder.safefile import NotInside, read_inside

NO_STEP: Final = -1
"""The step of a batch that was given and whose step was never logged: the run ended in it."""

_FINGERPRINT: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{16})")
_MOST_READ: Final = 1 << 30

Ids = Sequence[int] | Sequence[str]


def batches_file(folder: Path, rank: int = 0) -> Path:
    """Return the file of one rank's batches."""
    return folder / _file_of(rank)


def _file_of(rank: int) -> str:
    return "batches.jsonl" if rank == 0 else f"{RANKS}/{rank:05d}.batches.jsonl"


def fingerprint_of_ids(ids: Sequence[Any]) -> int:
    """Return 64 bits that are the same for the same ids in the same order, in any process and on any machine."""
    digest = blake2b(digest_size=8)
    if ids and isinstance(ids[0], str):
        for one in ids:
            data = one.encode("utf-8", "surrogatepass")
            digest.update(struct.pack("<q", len(data)) + data)
    else:
        form = "Q" if ids and max(ids) >= 1 << 63 else "q"
        digest.update(struct.pack(f"<{len(ids)}{form}", *ids))
    return int.from_bytes(digest.digest(), "little")


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch: its ids, or the fingerprint of what is in it."""

    samples: int
    ids: Ids | None = None
    fingerprint: int = 0
    """Where there are no ids."""
    losses: Sequence[float] | None = None


def encode_rows(session: int, rows: Sequence[tuple[int, BatchRow]]) -> bytes:
    """Return the lines of some batches, each with its step."""
    # Not a list of lines: orjson makes each in 8 KiB, which it keeps however short it is.
    lines = bytearray()
    for step, row in rows:
        ids: Any = f"{row.samples}:{row.fingerprint:016x}" if row.ids is None else list(row.ids)
        if row.ids and isinstance(row.ids[0], str):
            # Not every text of Python has a form in UTF-8.
            ids = [str(one).encode("utf-8", "replace").decode() for one in row.ids]
        losses = [[_written(loss) for loss in row.losses]] if row.losses is not None else []
        lines += orjson.dumps([session, step, ids, *losses], option=orjson.OPT_APPEND_NEWLINE)
    return bytes(lines)


def _written(loss: float) -> float | str:
    return loss if math.isfinite(loss) else name_of_non_finite(loss)


@dataclass
class Batches:
    """The batches of one rank, in the order of use; `session`, `step`, `samples` and `fingerprint` belong together.

    Several batches of one step are its accumulated gradients.
    """

    session: array[int] = field(default_factory=lambda: array("q"))
    step: array[int] = field(default_factory=lambda: array("q"))
    """The step that each was trained in; `NO_STEP` where the run ended before it was logged."""
    samples: array[int] = field(default_factory=lambda: array("q"))
    problem: str | None = None
    """What could not be read, in a sentence."""
    _lines: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def fingerprint(self) -> array[int]:
        """64 bits of each: of its ids in their order, or, where those are not known, of what is in it."""
        return array("Q", (self._fingerprint(self._cells(at)[2]) for at in range(len(self))))

    @staticmethod
    def _fingerprint(given: Any) -> int:
        return int(given.partition(":")[2], 16) if isinstance(given, str) else fingerprint_of_ids(given)

    def _cells(self, at: int) -> list[Any]:
        cells: list[Any] = orjson.loads(self._lines[at])
        return cells

    def ids(self, at: int) -> Ids | None:
        """Return the ids of the samples of a batch; None where they are not known."""
        given = self._cells(at)[2]
        return given if isinstance(given, list) else None

    def losses(self, at: int) -> Sequence[float] | None:
        """Return the loss of each sample of a batch, where the script gave it."""
        given = self._cells(at)[3:]
        return [float(loss) for loss in given[0]] if given else None

    def of_step(self, step: int, session: int | None = None) -> list[int]:
        """Return where the batches of a step are: of a session, or of the newest that trained it."""
        found = [at for at, one in enumerate(self.step) if one == step]
        wanted = max((self.session[at] for at in found), default=0) if session is None else session
        return [at for at in found if self.session[at] == wanted]

    def samples_at(self, step: int, session: int) -> list[tuple[Any, float | None]]:
        """Return the samples of a step, each with its loss where that is known, those with the highest loss first."""
        named: list[tuple[Any, float | None]] = []
        for at in self.of_step(step, session):
            ids = self.ids(at) or ()
            losses: Sequence[float | None] = self.losses(at) or [None] * len(ids)
            named += zip(ids, losses, strict=False)
        return sorted(named, key=lambda pair: -math.inf if math.isnan(pair[1] or 0.0) else -(pair[1] or 0.0))

    def samples_text(self, step: int, session: int, *, most: int = 8) -> str:
        """Return which samples a step was trained on, those with the highest loss first; empty if that is not known."""
        named = self.samples_at(step, session)
        shown = ", ".join(f"{one} (loss {loss:.4g})" if loss else str(one) for one, loss in named[:most])
        more = f", and {len(named) - most:,} more" if len(named) > most else ""
        return f"Batch of step {step:,}: samples {shown}{more}." if named else ""


def read_batches(folder: Path, rank: int = 0) -> Batches:
    """Return the batches of a rank as far as they can be read: none where none were written. It never raises."""
    found = Batches()
    name = _file_of(rank)
    try:
        data = read_inside(folder, name, max_bytes=_MOST_READ)
    except NotInside as error:
        found.problem = None if error.is_missing else str(error)
        return found
    except OSError as error:
        found.problem = f"{name} cannot be read: {error.strerror or error}"
        return found
    broken = 0
    for line in filter(None, data.split(b"\n")):
        place = _place_of(line)
        if place is None:
            broken += 1
            continue
        for column, number in zip((found.session, found.step, found.samples), place, strict=True):
            column.append(number)
        found._lines.append(line)  # noqa: SLF001 - its own reader
    if broken:
        found.problem = (
            f"{broken:,} lines of {name} cannot be read (a write was cut short?); their batches are missing"
        )
    return found


def _place_of(line: bytes) -> tuple[int, int, int] | None:
    """Return session, step and number of samples of a line; None if it is not one of a batch."""
    try:
        session, step, ids, *losses = orjson.loads(line)
        known = _FINGERPRINT.fullmatch(ids) if isinstance(ids, str) else None
        samples = int(known[1]) if known is not None else len(ids)
        # Those of the caller are all below 2**63, or none is negative.
        is_one = known is not None or (
            isinstance(ids, list)
            and (set(map(type, ids)) <= {int} or set(map(type, ids)) == {str})
            and (not ids or isinstance(ids[0], str) or min(ids) >= 0 or max(ids) < 1 << 63)
        )
        is_one = is_one and all(len([float(loss) for loss in some]) == samples for some in losses[:1])
        array("q", (session, step, samples))
    except (ValueError, TypeError, OverflowError):
        return None
    return (session, step, samples) if is_one else None
