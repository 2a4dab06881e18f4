"""JSON of other programs, with bare NaN and Infinity."""

from __future__ import annotations

import json
from typing import Any

import orjson


def parsed(value: Any) -> dict[str, Any] | None:
    """Return the object in a JSON text; None if the text is invalid or something else."""
    if type(value) not in (str, bytes):
        return None
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError:
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return found if type(found) is dict else None
