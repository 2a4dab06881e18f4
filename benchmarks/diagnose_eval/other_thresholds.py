"""Examine with other thresholds than the ones in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from toolkit.telemetry.diagnostics import thresholds


@contextmanager
def other_thresholds(values: Mapping[str, Any]) -> Iterator[None]:
    """Replace these thresholds for a while."""
    kept = {name: getattr(thresholds, name) for name in values}
    try:
        for name, value in values.items():
            setattr(thresholds, name, value)
        yield
    finally:
        for name, value in kept.items():
            setattr(thresholds, name, value)
