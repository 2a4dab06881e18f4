"""JSON of other programs, with bare NaN and Infinity."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

_FEW: Final = 100_000
_MOST: Final = 500_000
"""Values in one line."""
_BYTES_PER_VALUE: Final = 6


def loaded(text: bytes | str, *, most: int = _MOST) -> Any:
    """Return what a JSON text holds; None if it is invalid, or holds far more values than its length explains."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    if len(data) > _FEW:
        values = sum(map(data.count, (b",", b"[", b"{")))
        if values > min(_FEW + len(data) // _BYTES_PER_VALUE, most):
            return None
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        # Bare NaN and Infinity, and numbers beyond 64 bits.
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def parsed(value: Any) -> dict[str, Any] | None:
    """Return the object in a JSON text; None if the text is invalid or something else."""
    found = loaded(value) if type(value) in (str, bytes) else None
    return found if type(found) is dict else None
