"""The last sign of each rank of a run on disk, and which ranks died or fell silent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.diagnostics.silent_ranks import LostRank, findings_about, lost_ranks, not_yet_reported
from toolkit.telemetry.runfolder.node_folders import RankTail, read_tail
from toolkit.telemetry.runs.store import RankSign

_LOOK_EVERY_S: Final = 5.0
"""Every page asks for the alerts, and a thousand files are looked at for them."""
_REST_FOR_WORK: Final = 20.0
"""At least so many times as long as a look took."""


class RankSigns:
    """Reads the end of each rank's file, again only where it has changed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tails: dict[int, tuple[tuple[str, int, int], RankTail | None]] = {}
        self._lost: list[LostRank] = []
        self._files: Mapping[int, Path] = {}
        self._next_look = float("-inf")

    def look(self, files: Mapping[int, Path], *, is_live: bool) -> None:
        """Read what has changed, unless that was done just before."""
        with self._lock:
            began = time.monotonic()
            if began < self._next_look and files.keys() == self._files.keys():
                return
            self._tails = {rank: self._read(rank, path) for rank, path in files.items()}
            self._lost = lost_ranks(files, self._known(), now=time.time(), is_live=is_live)
            self._files = files
            took = time.monotonic() - began
            self._next_look = began + max(_LOOK_EVERY_S, _REST_FOR_WORK * took)

    def signs(self) -> Sequence[RankSign]:
        """Return the last sign of each rank, in order."""
        with self._lock:
            tails, lost = self._known(), {each.rank: each.kind for each in self._lost}
        return [
            RankSign(
                rank=rank,
                last_step=tail.last_step,
                last_time=tail.last_time,
                ended=tail.end,
                non_finite=tail.nan_metrics,
                lost=lost.get(rank),
            )
            for rank, tail in sorted(tails.items())
        ]

    def findings(self, reported: Sequence[Finding], step: int) -> Sequence[Finding]:
        """Return the findings about lost ranks that the run itself has not `reported`."""
        with self._lock:
            lost, tails = self._lost, self._known()
        session = max((tail.session for tail in tails.values()), default=0)
        return findings_about(not_yet_reported(lost, reported, session), session=session, step=step)

    def _known(self) -> dict[int, RankTail]:
        return {rank: tail for rank, (_, tail) in self._tails.items() if tail is not None}

    def _read(self, rank: int, path: Path) -> tuple[tuple[str, int, int], RankTail | None]:
        try:
            status = os.stat(path, follow_symlinks=False)
            version = (str(path), status.st_size, status.st_mtime_ns)
            known = self._tails.get(rank)
            return known if known is not None and known[0] == version else (version, read_tail(path, rank))
        except OSError:
            return ("", 0, 0), None
