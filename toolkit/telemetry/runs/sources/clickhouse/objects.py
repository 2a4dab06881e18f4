"""Sample images and other files of runs, from the store that shippers copied them to."""

from __future__ import annotations

import time
from typing import Final

from toolkit.telemetry.fleet.stores import FileError, MissingError, Store, StoreError, read_at_most
from toolkit.telemetry.runfolder.layout import is_safe_name
from toolkit.telemetry.runfolder.safefile import NotInside, parts_inside
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.store import Refused

_ASKED_AGAIN_S: Final = 15.0
"""How often a store that did not answer is asked again."""


class EngineObjects:
    """Reads stored files. Thread-safe."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._failure: tuple[float, str] | None = None

    def read(self, run_id: str, relative: str, *, max_bytes: int, node: str) -> bytes:
        """Return the content of a file of a run.

        Raises:
            Refused: it is not a path inside the run's folder, too large, not shipped, or the store does not answer.
        """
        try:
            parts_inside(relative)
        except NotInside as error:
            raise Refused(str(error)) from error
        failure = self._failure
        # A page shows a hundred images: it does not wait for each of them while the store is away.
        if failure is not None and time.monotonic() - failure[0] < _ASKED_AGAIN_S:
            raise Refused(failure[1])
        try:
            if self._store is not None and is_safe_name(run_id):
                return read_at_most(self._store, f"{run_id}/{relative}", max_bytes)
        except MissingError:
            pass
        except FileError as error:
            raise Refused(f"{relative[:100]!r}: {clean(str(error))}; it is on {node}") from error
        except StoreError as error:
            self._failure = (time.monotonic(), clean(str(error)))
            raise Refused(clean(str(error))) from error
        raise Refused(f"{relative[:100]!r} was not shipped; it is on {node}")
