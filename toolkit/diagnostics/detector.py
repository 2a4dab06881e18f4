"""The interface of a detector."""

from __future__ import annotations

from typing import Protocol

from toolkit.diagnostics.metric_aliases import Row


class Detector(Protocol):
    """Reads the records of a run one by one, with bounded memory, and opens and closes incidents.

    It is constructed with the `Incidents` that it writes to. Its result depends on the records alone: not on the clock,
    and not on how many records come at once.
    """

    signals: tuple[str, ...]
    """It gets the records that have one of these; `"*"` means all records."""
    all_ranks: bool
    """Whether it gets the records of every rank, or only those of rank 0."""

    def take(self, row: Row) -> None:
        """Read one record; `row` is valid only during the call."""
        ...

    def restart(self, step: int) -> None:
        """Handle a new session, or steps that went back to `step`.

        What was learnt about the level of a curve may no longer hold.
        """
        ...
