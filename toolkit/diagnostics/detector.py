"""The seam between the examiner and a detector."""

from __future__ import annotations

from typing import Protocol

from toolkit.diagnostics.metric_aliases import Row


class Detector(Protocol):
    """Looks at the records of a run one by one, remembers a bounded amount, and keeps the book of incidents.

    A detector is made with the `Incidents` that it writes to. What it says depends on the records alone: not on the
    clock, and not on how many records came at once.
    """

    signals: tuple[str, ...]
    """It is shown the records that carry one of these; with `"*"` it is shown all."""
    all_ranks: bool
    """Whether it is shown the records of every rank, or only those of rank 0."""

    def take(self, row: Row) -> None:
        """Look at one record; `row` is valid during the call only."""
        ...

    def restart(self, step: int) -> None:
        """The run goes on from another state: a session began, or the steps went back to `step`.

        What was learnt about the level of a curve may no longer hold.
        """
        ...
