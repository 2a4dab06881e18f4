r"""The batches that a run was trained on, in a file next to its records: how they are written, and read again.

The file is a row of chunks that each can be read alone, so that a torn one costs its own batches only:

    b"\xb7B1"  crc32 of the body (4 bytes)  length of the body (varint)  body
    body: session (varint), then of each batch:
        step (zigzag varint, the difference to the batch before), samples (varint), a byte that says what follows:
        1 to 5: the ids as integers of that width; 6: the ids as texts, each after its length (varint);
        0: no ids, but a fingerprint (8 bytes); + 8: and then a float32 of each sample, its loss
"""

from __future__ import annotations

import math
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.runfolder.layout import RANKS
from toolkit.telemetry.runfolder.safefile import NotInside, read_inside

NO_STEP: Final = -1
"""The step of a batch that was given and whose step was never logged: the run ended in it."""

_MAGIC: Final = b"\xb7B1"
_FORMS: Final = {1: "B", 2: "H", 3: "I", 4: "Q", 5: "q"}
_TEXTS: Final = 6
_LOSSES: Final = 8
_MOST_READ: Final = 1 << 30

Ids = Sequence[int] | Sequence[str]


def batches_file(folder: Path, rank: int = 0) -> Path:
    """Return the file of one rank's batches."""
    return folder / _file_of(rank)


def _file_of(rank: int) -> str:
    return "batches.bin" if rank == 0 else f"{RANKS}/{rank:05d}.batches.bin"


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

    def without_ids(self) -> BatchRow:
        """Return the batch with its fingerprint alone, which takes a few bytes."""
        known = self.fingerprint if self.ids is None else fingerprint_of_ids(self.ids)
        return BatchRow(self.samples, fingerprint=known)


def encode_chunk(session: int, rows: Sequence[tuple[int, BatchRow]]) -> bytes:
    """Return the bytes that are appended for some batches, each with its step."""
    body, before = bytearray(_varint(session)), 0
    for step, row in rows:
        body += _varint((step - before) << 1 if step >= before else ((before - step) << 1) - 1)
        body += _varint(row.samples)
        before = step
        losses = _LOSSES if row.losses is not None else 0
        if row.ids is None:
            body += bytes((losses,)) + struct.pack("<Q", row.fingerprint)
        elif row.ids and isinstance(row.ids[0], str):
            body.append(_TEXTS | losses)
            for one in row.ids:
                data = str(one).encode("utf-8", "surrogatepass")
                body += _varint(len(data)) + data
        else:
            kind = _narrowest(row.ids)
            body.append(kind | losses)
            body += struct.pack(f"<{row.samples}{_FORMS[kind]}", *row.ids)
        if row.losses is not None:
            body += struct.pack(f"<{row.samples}f", *row.losses)
    return _MAGIC + struct.pack("<I", zlib.crc32(body)) + _varint(len(body)) + bytes(body)


def _narrowest(ids: Sequence[Any]) -> int:
    high = max(ids, default=0)
    return 5 if min(ids, default=0) < 0 else 1 + (high >= 1 << 8) + (high >= 1 << 16) + (high >= 1 << 32)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends. Raises IndexError if the data end before it does, or it is too long."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
        if shift > 70:
            raise IndexError("a number of more than ten bytes")


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
    _data: bytes = b""
    _kinds: bytearray = field(default_factory=bytearray)
    _places: array[int] = field(default_factory=lambda: array("Q"))

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def fingerprint(self) -> array[int]:
        """64 bits of each: of its ids in their order, or, where those are not known, of what is in it."""
        return array("Q", (self._fingerprint(at) for at in range(len(self))))

    def _fingerprint(self, at: int) -> int:
        ids = self.ids(at)
        if ids is not None:
            return fingerprint_of_ids(ids)
        return int(struct.unpack_from("<Q", self._data, self._places[at])[0])

    def ids(self, at: int) -> Ids | None:
        """Return the ids of the samples of a batch; None where they are not known."""
        kind, place, count = self._kinds[at] & ~_LOSSES, self._places[at], self.samples[at]
        if kind == _TEXTS:
            texts = (self._data[begin:end] for begin, end in _texts(self._data, place, count))
            return [text.decode("utf-8", "replace") for text in texts]
        return struct.unpack_from(f"<{count}{_FORMS[kind]}", self._data, place) if kind else None

    def losses(self, at: int) -> Sequence[float] | None:
        """Return the loss of each sample of a batch, where the script gave it."""
        if not self._kinds[at] & _LOSSES:
            return None
        begin = _end_of_ids(self._data, self._places[at], self._kinds[at] & ~_LOSSES, self.samples[at])
        return struct.unpack_from(f"<{self.samples[at]}f", self._data, begin)

    def of_step(self, step: int, session: int | None = None) -> list[int]:
        """Return where the batches of a step are: of a session, or of the newest that trained it."""
        found = [at for at, one in enumerate(self.step) if one == step]
        wanted = max((self.session[at] for at in found), default=0) if session is None else session
        return [at for at in found if self.session[at] == wanted]

    def samples_text(self, step: int, session: int, *, most: int = 8) -> str:
        """Return which samples a step was trained on, those with the highest loss first; empty if that is not known."""
        named: list[tuple[float, Any]] = []
        for at in self.of_step(step, session):
            ids, losses = self.ids(at) or (), self.losses(at) or ()
            named += zip(losses or [0.0] * len(ids), ids, strict=False)
        named.sort(key=lambda pair: -math.inf if math.isnan(pair[0]) else -pair[0])
        shown = ", ".join(f"{one} (loss {loss:.4g})" if loss else str(one) for loss, one in named[:most])
        more = f", and {len(named) - most:,} more" if len(named) > most else ""
        return f"Batch of step {step:,}: samples {shown}{more}." if named else ""


def read_batches(folder: Path, rank: int = 0) -> Batches:
    """Return the batches of a rank as far as they can be read: none where none were written. It never raises."""
    found = Batches()
    name = _file_of(rank)
    try:
        found._data = data = read_inside(folder, name, max_bytes=_MOST_READ)  # noqa: SLF001 - its own reader
    except NotInside as error:
        found.problem = None if error.is_missing else str(error)
        return found
    except OSError as error:
        found.problem = f"{name} cannot be read: {error.strerror or error}"
        return found
    at = broken = 0
    while at < len(data):
        end = _read_chunk(found, data, at)
        if end is None:
            # The next chunk is whole again.
            end = data.find(_MAGIC, at + 1)
            end = len(data) if end < 0 else end
            broken += end - at
        at = end
    if broken:
        found.problem = (
            f"{broken:,} bytes of {name} cannot be read (a write was cut short?); their batches are missing"
        )
    return found


def _read_chunk(into: Batches, data: bytes, at: int) -> int | None:
    """Add the batches of a chunk; return where it ends, or None if it is not whole."""
    try:
        if data[at : at + 3] != _MAGIC:
            return None
        length, begin = _read_varint(data, at + 7)
        end = begin + length
        known = struct.unpack_from("<I", data, at + 3)[0]
        is_whole = end <= len(data) and zlib.crc32(memoryview(data)[begin:end]) == known
        rows = list(_rows(data, begin, end)) if is_whole else None
    except (IndexError, struct.error):
        return None
    for session, step, samples, kind, place in rows or ():
        into.session.append(session)
        into.step.append(step)
        into.samples.append(samples)
        into._kinds.append(kind)  # noqa: SLF001 - as above
        into._places.append(place)  # noqa: SLF001
    return None if rows is None else end


def _rows(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    session, at = _read_varint(data, at)
    step = 0
    while at < end:
        change, at = _read_varint(data, at)
        step += change >> 1 if not change & 1 else -((change + 1) >> 1)
        samples, at = _read_varint(data, at)
        kind, place = data[at], at + 1
        at = _end_of_ids(data, place, kind & ~_LOSSES, samples) + (4 * samples if kind & _LOSSES else 0)
        is_possible = max(session, samples, abs(step)) < 1 << 62 and kind & ~_LOSSES <= _TEXTS
        if at > end or not is_possible:
            raise IndexError("a batch that is longer than its chunk")
        yield session, step, samples, kind, place


def _end_of_ids(data: bytes, place: int, kind: int, count: int) -> int:
    if kind == _TEXTS:
        *_, (_, end) = (0, place), *_texts(data, place, count)
        return end
    return place + (count * struct.calcsize(f"<{_FORMS[kind]}") if kind in _FORMS else 8)


def _texts(data: bytes, at: int, count: int) -> Iterator[tuple[int, int]]:
    for _ in range(count):
        length, begin = _read_varint(data, at)
        at = begin + length
        yield begin, at
