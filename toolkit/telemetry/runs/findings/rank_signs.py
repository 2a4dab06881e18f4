"""The last sign of each rank of a run on disk, and which ranks died or fell silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.diagnostics.silent_ranks import LostRanks
from toolkit.telemetry.runs.store import RankSign

_LOOK_EVERY_S: Final = 5.0
"""Every page asks for the alerts, and a thousand files are looked at for them."""
_REST_FOR_WORK: Final = 20.0
"""At least so many times as long as a look took."""


class RankSigns:
    """Reads the end of each rank's file, again only where it has changed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranks = LostRanks()
        self._next_look = float("-inf")

    def look(self, files: Mapping[int, Path], *, is_live: bool) -> None:
        """Read what has changed, unless that was done just before."""
        with self._lock:
            began = time.monotonic()
            if began < self._next_look and files.keys() == self._ranks.files.keys():
                return
            self._ranks.look(files, now=time.time(), is_live=is_live)
            took = time.monotonic() - began
            self._next_look = began + max(_LOOK_EVERY_S, _REST_FOR_WORK * took)

    def signs(self) -> Sequence[RankSign]:
        """Return the last sign of each rank, in order."""
        with self._lock:
            tails, lost = self._ranks.tails, {each.rank: each.kind for each in self._ranks.lost}
        return [RankSign(tail, lost.get(rank)) for rank, tail in sorted(tails.items())]

    def findings(self, reported: Sequence[Finding]) -> Sequence[Finding]:
        """Return the findings about lost ranks that the run itself has not `reported`."""
        with self._lock:
            return self._ranks.findings(reported)
