"""The sink that collects the configuration and the evaluations of a live run for its run.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from toolkit.telemetry.runfolder.key_values import KeyValues
from toolkit.telemetry.runfolder.manifest import Manifest
from toolkit.telemetry.runfolder.records import START, Record


class KeyValuesSink:
    """Takes the records of the run as they reach the file.

    `from_start` says that it gets the records of earlier sessions too. Until it has all of them, what run.json said
    before counts; otherwise it continues with that. `on_start` is called for each start record of this session.
    """

    name = "key values"
    only_reads = True
    """It never changes a record, so that it can share them with other mirrors."""

    def __init__(
        self, known: Manifest, *, session: int, from_start: bool, on_start: Callable[[], None]
    ) -> None:
        before = KeyValues(known.config, known.evaluations)
        self._shown = before
        self._taken = KeyValues() if from_start else before
        self._session = session
        self._on_start = on_start

    def added_to(self, manifest: Manifest) -> Manifest:
        """Return `manifest` with the newest configuration and evaluations."""
        return replace(manifest, config=self._shown.config, evaluations=self._shown.evaluations)

    def write(self, batch: Sequence[Record]) -> None:
        """Take `batch`, the next records of the file."""
        self._taken.take(batch)
        is_now = bool(batch) and batch[-1].get("session") == self._session
        if is_now:
            self._shown = self._taken
            if any(record.get("event") == START for record in batch):
                self._on_start()

    def close(self) -> None:
        """Do nothing."""
