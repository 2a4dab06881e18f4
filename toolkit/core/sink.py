"""The seam between the run and whoever wants its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from toolkit.runfolder.records import Record


class Sink(Protocol):
    """A destination for records; one call at a time is made, on a thread of the sink's own."""

    name: str

    def write(self, batch: Sequence[Record]) -> None:
        """Take `batch`, decoded records in the order of the file; raise if it could not be taken."""
        ...

    def close(self) -> None:
        """Make everything taken durable and let go of the destination."""
        ...


@runtime_checkable
class DeliveringSink(Sink, Protocol):
    """A sink that sends records over a network, and knows which of them have arrived."""

    @property
    def refused(self) -> int:
        """How many the other side would not take at all."""
        ...

    def is_undelivered(self, record: Record) -> bool:
        """Say whether `record` is one that it delivers and has not delivered yet; called on another thread."""
        ...

    def give_up(self) -> None:
        """Send nothing more, and end a retry that waits; called on another thread."""
        ...


class MemorySink:
    """Keeps what it is given: for tests and notebooks."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.records: list[Record] = []
        self.closed = False

    def write(self, batch: Sequence[Record]) -> None:
        """Append `batch` to `records`."""
        self.records.extend(batch)

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True
