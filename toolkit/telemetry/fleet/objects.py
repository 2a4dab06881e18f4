"""Copies sample images and other files of runs to a store, as RUN_ID/PATH.

This has a thread of its own: however slow the store is, records are shipped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from toolkit.telemetry.core.outbox import Backoff, Failures
from toolkit.telemetry.fleet.copy import copy_runs
from toolkit.telemetry.fleet.run_folders import is_for_pages
from toolkit.telemetry.fleet.stores import FolderStore, Store, StoreError
from toolkit.telemetry.runfolder.layout import is_safe_name

EVERY_S: Final = 2.0
_RUNS_AT_ONCE: Final = 20


@dataclass(slots=True)
class ObjectTotals(Failures):
    """What was done since the start; `last_error` is empty once the store answers again."""

    stored: int = 0
    waiting: int = 0
    """Runs whose files are not stored yet."""


class ObjectShipper:
    """Stores the files of the runs that were added."""

    def __init__(self, store: Store, *, say: Callable[[str], None] | None = None) -> None:
        self.store = store
        self.totals = ObjectTotals()
        self._inbox: SimpleQueue[tuple[str, Path]] = SimpleQueue()
        self._waiting: dict[str, Path] = {}
        self._backoff = Backoff()
        self._say = say

    def add(self, run_id: str, folder: Path) -> None:
        """Store what is new in the folder of a run; for another thread, and without waiting."""
        if is_safe_name(run_id):
            self._inbox.put((run_id, folder))

    @property
    def is_behind(self) -> bool:
        """Whether files wait, or the store did not answer; refused files do not count."""
        return bool(self.totals.waiting) or self._backoff.reason is not None

    def run(self, stop: threading.Event) -> None:
        """Store what is added until `stop` is set, and then what waits."""
        while not stop.is_set():
            begin = time.monotonic()
            self.ship_all()
            stop.wait(max(0.0, EVERY_S - (time.monotonic() - begin)))
        self.ship_all()

    def ship_all(self) -> None:
        """Store everything that was added, once; `totals` says what is left."""
        while not self._inbox.empty():
            self._waiting.update([self._inbox.get()])
        while self._waiting and self._backoff.is_ready:
            some = list(islice(self._waiting, _RUNS_AT_ONCE))
            try:
                self._ship(some)
            except (StoreError, OSError) as error:
                self._backoff.failed(str(error))
                self.totals.add(str(error), self._say)
                break
            if self._backoff.reason is not None:
                self.totals.last_error = ""
            self._backoff.succeeded()
            for run_id in some:
                del self._waiting[run_id]
        self.totals.waiting = len(self._waiting)

    def _ship(self, run_ids: Sequence[str]) -> None:
        runs = FolderStore(Path(), {run_id: self._waiting[run_id] for run_id in run_ids})
        names = {name.partition("/")[0] for name, one in runs.files().items() if is_for_pages(name, one.size)}
        if names:
            self.totals.stored += copy_runs(
                runs,
                self.store,
                sorted(names),
                say=lambda said: self.totals.add(said, self._say),
                wants=is_for_pages,
            ).files
