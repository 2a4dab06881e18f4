"""Files that records point to, from the store that shippers copied them to."""

from __future__ import annotations

import threading
import time
from typing import Final

from toolkit.telemetry.fleet.engine import EngineError
from toolkit.telemetry.fleet.objects import StoredObject, read_object, stored_objects
from toolkit.telemetry.fleet.stores import FileError, Store, StoreError
from toolkit.telemetry.runfolder.safefile import NotInside, parts_inside, too_large
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.sources.clickhouse.link import EngineLink
from toolkit.telemetry.runs.sources.clickhouse.record_source import KeptBytes
from toolkit.telemetry.runs.sources.store_queries import keep_recent
from toolkit.telemetry.runs.store import Refused

_ROWS_EVERY_S: Final = 5.0
_MAX_RUNS: Final = 20
_KEPT_BYTES: Final = 64_000_000
_ASKED_AGAIN_S: Final = 15.0
"""How often a store that did not answer is asked again."""


class EngineObjects:
    """Reads stored files and checks them. Thread-safe."""

    def __init__(self, link: EngineLink, store: Store | None) -> None:
        self._link = link
        self._store = store
        self._lock = threading.Lock()
        self._rows: dict[str, tuple[float, dict[str, StoredObject]]] = {}
        self._kept = KeptBytes(_KEPT_BYTES)
        self._failure: tuple[float, str] | None = None

    def read(self, run_id: str, relative: str, *, max_bytes: int, node: str) -> bytes:
        """Return the content of a file as it was shipped.

        Raises:
            Refused: it is not a path inside the run's folder, too large, not shipped, or the store lacks it.
        """
        try:
            parts_inside(relative)
        except NotInside as error:
            raise Refused(str(error)) from error
        found = self._find(run_id, relative) if self._store is not None else None
        if found is None or self._store is None:
            raise Refused(f"{relative[:100]!r} was not shipped; it is on {node}")
        if found.bytes > max_bytes:
            raise Refused(too_large(relative, found.bytes, max_bytes))
        if (data := self._kept.get(found.sha256)) is not None:
            return data
        failure = self._failure
        # A page shows a hundred images: it does not wait for each of them while the store is away.
        if failure is not None and time.monotonic() - failure[0] < _ASKED_AGAIN_S:
            raise Refused(failure[1])
        try:
            data = read_object(self._store, found, max_bytes)
        except FileError as error:
            raise Refused(f"{relative[:100]!r}: {clean(str(error))}; it is on {node}") from error
        except StoreError as error:
            self._failure = (time.monotonic(), clean(str(error)))
            raise Refused(clean(str(error))) from error
        self._kept.keep(found.sha256, data)
        return data

    def _find(self, run_id: str, path: str) -> StoredObject | None:
        asked, rows = self._rows.get(run_id, (float("-inf"), {}))
        if time.monotonic() - asked >= _ROWS_EVERY_S:
            try:
                rows = stored_objects(self._link, [run_id])[run_id]
            except EngineError as error:
                if path not in rows:
                    raise Refused(f"{path[:100]!r}: {self._link.problem or clean(str(error))}") from error
            else:
                with self._lock:
                    keep_recent(self._rows, run_id, (time.monotonic(), rows), _MAX_RUNS)
        return rows.get(path)
