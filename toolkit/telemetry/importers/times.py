"""Times as other tools write them."""

from __future__ import annotations

import functools
from datetime import datetime, timezone
from typing import Any

from toolkit.telemetry.importers.source import NO_TIME


@functools.lru_cache(maxsize=4096)
def from_iso(words: str) -> float:
    """Return seconds since the epoch; a time without a zone is UTC. `NO_TIME` if it is no time."""
    try:
        timestamp = datetime.fromisoformat(words[:-1] + "+00:00" if words.endswith("Z") else words)
        if timestamp.tzinfo is None:
            timestamp = timestamp.replace(tzinfo=timezone.utc)
        return timestamp.timestamp()
    except (ValueError, OverflowError, OSError):
        return NO_TIME


def from_any(value: Any) -> float:
    """Return seconds since the epoch of an ISO text or of seconds."""
    if type(value) is str:
        return from_iso(value[:64])
    return float(value) if type(value) in (int, float) and abs(value) < 1e15 else NO_TIME


def from_ms(value: Any) -> float:
    """Return seconds of milliseconds."""
    return value / 1000 if type(value) in (int, float) and abs(value) < 1e18 else NO_TIME
