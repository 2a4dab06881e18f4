"""The interface between the sampling threads and what they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Value = float | int | str
Sample = Mapping[str, Value]


class NothingToSample(Exception):  # noqa: N818  (a state of the machine, not an error)
    """Raised by a sampler whose hardware or library is missing: its thread ends, and no failure is reported."""


class Sampler(Protocol):
    """One source of metrics; it is made, asked and closed by one thread at a time.

    Making one is cheap: libraries are imported and drivers opened by the first `sample`, on the source's own thread.
    """

    name: str

    def sample(self) -> Sample:
        """Return what can be said now; a metric that cannot be read is absent, not 0.

        Raises:
            NothingToSample: there is nothing here to ask, and there will not be.
        """

    def close(self) -> None:
        """Let go of libraries and drivers; called on the thread that sampled."""
