"""A batch as a row: the ids of its samples, or a fingerprint of what is in it, without waiting for a device."""

from __future__ import annotations

import ctypes
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final
from uuid import UUID

from toolkit.telemetry.core.guard import MisuseError
from toolkit.telemetry.logger.records.media import snapshot
from toolkit.telemetry.runfolder.evidence.batches import BatchRow, Ids, fingerprint_of_ids

_FIRST: Final = (
    *("input_ids", "prompt_input_ids", "pixel_values", "input_values", "input_features", "inputs"),
    *("image", "images", "x", "text", "prompt"),
)
"""What tells batches apart, by its usual names; else it is the first tensor, array or text of a batch."""
_WHOLE: Final = 4096
_PIECES: Final = 16
_PIECE: Final = 256
_COPIED: Final = 1 << 16
"""Up to `_WHOLE` bytes are looked at one by one; of more, pieces from all over it."""
_GOLDEN: Final = 0.6180339887498949
_TEXTS: Final = (str, os.PathLike, UUID)
_LONGEST_TEXT: Final = 256
_MOST_LEVELS: Final = 4
_MOST_TEXTS: Final = 4096

Losses = Callable[[], Any]
"""Returns the losses, on another thread: it may wait for a GPU."""


def row_of(ids: Any = None, batch: Any = None) -> BatchRow | None:
    """Return a batch as a row; None where nothing of it is in host memory.

    Raises:
        MisuseError: the ids are neither integers nor texts, or are on a device.
    """
    if ids is None:
        return None if batch is None else content_row(batch)
    found = ids_of(ids)
    if found and isinstance(found[0], str) and any(len(one) > _LONGEST_TEXT for one in found):  # type: ignore[arg-type]
        return BatchRow(len(found), fingerprint=fingerprint_of_ids(found))
    return BatchRow(len(found), found)


def ids_of(given: Any) -> Ids:
    """Return a copy of ids as they are now: integers, or texts. Raises MisuseError where they are neither."""
    if hasattr(given, "tolist"):
        if not _is_in_host_memory(given):
            raise MisuseError(f"the ids of a batch are on {given.device}; they must be in host memory")
        given = given.reshape(-1).tolist()
    elif isinstance(given, (int, bytes, *_TEXTS)) or not isinstance(given, Iterable):
        given = (given,)
    if not isinstance(given, (list, tuple, range, array)):
        given = list(given)
    if given and hasattr(given[0], "is_cuda"):
        # One by one they would be waited for.
        return ids_of([one for some in given for one in ids_of(some)])
    for form in ("q", "Q"):
        with suppress(TypeError, OverflowError):
            return array(form, given)
    if any(all(isinstance(one, kind) for one in given) for kind in (int, _TEXTS)):
        return [str(one) for one in given]
    kinds = sorted({type(one).__name__ for one in given})
    raise MisuseError(f"the ids of a batch must be integers, or texts, and not: {', '.join(kinds[:4])}")


def losses_of(given: Any, samples: int) -> Losses:
    """Return what gives the loss of each of `samples` samples as it is now.

    Raises:
        MisuseError: there are more or fewer, or they are on a device that has to be waited for.
    """
    size = given.numel() if hasattr(given, "numel") else getattr(given, "size", None)
    count = size if isinstance(size, int) else len(given)
    if count != samples:
        raise MisuseError(f"log.batch got {count} losses for {samples} samples; there must be one of each")
    if not _is_in_host_memory(given) and not getattr(given, "is_cuda", False):
        raise MisuseError(f"the losses of a batch are on {given.device}; give them as numbers")
    taken = snapshot(given) if hasattr(given, "detach") else None
    copied = None if taken is not None else array("f", given)
    return lambda: copied if taken is None else array("f", taken().reshape(-1).tolist())


def content_row(batch: Any) -> BatchRow | None:
    """Return a batch with the fingerprint of its first usual tensor, array or texts; None where none is in memory."""
    for one in _candidates(batch, 0):
        digest = blake2b(digest_size=8)
        samples = _add_texts(digest, one) if isinstance(one, (list, tuple)) else _add_array(digest, one)
        if samples is not None:
            return BatchRow(samples, fingerprint=int.from_bytes(digest.digest(), "little"))
    return None


def _is_in_host_memory(given: Any) -> bool:
    device = getattr(given, "device", None)
    # An array of numpy 2 says "cpu", one of numpy 1 says nothing.
    return device is None or getattr(device, "type", device) == "cpu"


def _candidates(batch: Any, level: int) -> Iterator[Any]:
    """Yield what the fingerprint may be of, the likeliest first."""
    if level > _MOST_LEVELS or batch is None or getattr(batch, "is_nested", False):
        return
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        yield batch
    elif isinstance(batch, Mapping):
        names = [name for name in _FIRST if name in batch]
        for name in (*names, *(name for name in batch if name not in _FIRST)):
            yield from _candidates(batch[name], level + 1)
    elif isinstance(batch, str):
        yield [batch]
    elif isinstance(batch, (list, tuple)) and batch:
        if isinstance(batch[0], (str, int, float)):
            yield batch
        else:
            for one in batch[:_PIECES]:
                yield from _candidates(one, level + 1)


def _add_texts(digest: Any, texts: Sequence[Any]) -> int | None:
    for text in texts[:_MOST_TEXTS]:
        data = str(text)[:_WHOLE].encode("utf-8", "surrogatepass")
        digest.update(struct.pack("<q", len(data)) + data)
    return len(texts)


def _add_array(digest: Any, one: Any) -> int | None:
    """Add an array or tensor in host memory to a digest; return how many samples it has, or None if it cannot be."""
    found = _bytes_of(one) if _is_in_host_memory(one) else None
    if found is None:
        return None
    # The second keeps the memory alive.
    view, _kept = found
    digest.update(f"{str(one.dtype).rpartition('.')[2]} {tuple(one.shape)}".encode())
    size = len(view)
    if size <= _WHOLE:
        digest.update(view)
    else:
        every = (size - _PIECE) / _PIECES
        for number in range(_PIECES):
            # Not at equal distances: the corners of all images may be the same.
            at = int((number + number * _GOLDEN % 1.0) * every)
            digest.update(view[at : at + _PIECE])
    return int(one.shape[0]) if len(one.shape) else 1


def _bytes_of(one: Any) -> tuple[memoryview, Any] | None:
    """Return the memory of an array or tensor, and its owner; None where it has none, or is large and full of gaps."""
    if not hasattr(one, "data_ptr"):
        # A column of pandas has no bytes of its own.
        if (
            not hasattr(one, "tobytes")
            or one.dtype.hasobject
            or (not one.flags.c_contiguous and one.nbytes > _COPIED)
        ):
            return None
        return memoryview(one if one.flags.c_contiguous and one.size else one.tobytes()).cast("B"), one
    if str(one.layout) != "torch.strided":
        return None
    one = one.detach()
    size = one.numel() * one.element_size()
    # Its axes may be in any order, but there is nothing of others between its numbers.
    reach = 1 + sum((length - 1) * step for length, step in zip(one.shape, one.stride(), strict=True))
    if size and reach * one.element_size() != size:
        if size > _COPIED:
            return None
        one = one.contiguous()
    # By its address: `numpy` knows no bfloat16 and no float8, and torch can do without numpy.
    begin = one.data_ptr()
    if size and not begin:
        # It only describes a tensor.
        return None
    return memoryview((ctypes.c_char * size).from_address(begin) if size else b"").cast("B"), one
