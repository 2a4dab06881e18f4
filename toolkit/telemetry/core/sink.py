"""The interface of everything that receives a run's records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from toolkit.telemetry.runfolder.records import Record


class Sink(Protocol):
    """A destination for records; called on a thread of its own, one call at a time."""

    name: str

    def write(self, batch: Sequence[Record]) -> None:
        """Take `batch`, decoded records in the order of the file; raise if it could not be taken."""

    def close(self) -> None:
        """Make everything durable and close the destination; called again if it raises an OSError."""


@runtime_checkable
class DeliveringSink(Sink, Protocol):
    """A sink that sends records over a network, and knows which of them have arrived."""

    @property
    def refused(self) -> int:
        """How many the other side has refused."""

    def is_undelivered(self, record: Record) -> bool:
        """Return whether `record` still has to be delivered; called on another thread."""

    def give_up(self) -> None:
        """Send nothing more, and cancel a pending retry; called on another thread."""


class MemorySink:
    """Keeps all records in memory: for tests and notebooks."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.records: list[Record] = []
        self.closed = False

    def write(self, batch: Sequence[Record]) -> None:
        """Append `batch` to `records`."""
        self.records.extend(batch)

    def close(self) -> None:
        """Set `closed`."""
        self.closed = True
