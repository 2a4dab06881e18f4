"""Watches the files of the other ranks of a live run: which of them grow no more."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.catalogue import RANK_DEAD, RANK_SILENT
from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.diagnostics.rank_differences import RankDifferences
from toolkit.telemetry.diagnostics.silent_ranks import LostRank, LostRanks, make_finding
from toolkit.telemetry.runfolder.layout import METRICS_JSONL, RANKS, rank_file

_MOST_LOOKED_UP: Final = 16
"""Ranks whose file and process are looked at in one look; the others have their turn in the next."""
_LOOK_UP_AGAIN_S: Final = 5.0
"""A rank that is quiet for a good reason is looked at again after this long."""
_MOST_LOCKS: Final = 8
_MOST_HOSTS: Final = 256
"""Ranks whose locks are looked for in one look, and whose machines are compared once one is lost."""
_ENDING: Final = ".jsonl"


class RankWatch:
    """Looks at the sizes of all files, and judges a rank only when its file has not grown for a while.

    A rank without a file has not started. A rank whose newest records are of an earlier session is not watched.
    Looking at the files of 1,000 ranks is one listing with their sizes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        session: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._session = session
        self._now = now
        self._ranks: dict[int, _Watched] = {}
        """Rank 0 among them."""
        self._unknown: deque[int] = deque()
        """Those whose process is not known, in turn: one may never say it, as of an earlier session."""
        self._judge = LostRanks()
        self._looked_at = now()
        self._lost: dict[int, LostRank] = {}
        """Those whose file has not grown since."""
        self._open: dict[str, str] = {}
        """The id of the open finding of each kind."""
        self._differences = RankDifferences(folder, session=session)

    def look(self, step: int) -> list[Finding]:
        """Return the findings that are new or have changed; `step` is the one rank 0 is at."""
        now = self._now()
        sizes = self._sizes()
        if sizes is None:
            return []
        if now - self._looked_at > at.SILENT_RANK_S / 2:
            # This process was stopped, maybe with all others, which may write again a little later than it.
            for rank in self._ranks.values():
                rank.grew_at = now
        self._looked_at = now
        back = self._note_sizes(sizes, now)
        self._note_locks()
        changed = self._changed(self._find_lost(now), back, step)
        return changed + self._differences.look(sorted(self._ranks.keys() - {0}), step)

    def last_look(self, step: int) -> list[Finding]:
        """Look up every process whose rank has not ended, as the run failed: a rank that died may be the reason."""
        now = self._now()
        self._note_sizes(self._sizes() or {}, now)
        for rank in self._ranks.values():
            rank.look_again_at = now
            rank.grew_at = min(rank.grew_at, now - at.DEAD_RANK_S)
        turns = range(0, len(self._ranks), _MOST_LOOKED_UP)
        return self._changed([lost for _ in turns for lost in self._find_lost(now)], [], step)

    def _sizes(self) -> dict[int, int] | None:
        place = self._folder / RANKS
        try:
            if place.is_symlink():
                return None
            found = {0: os.stat(self._folder / METRICS_JSONL).st_size}
            with os.scandir(place) as entries:
                for entry in entries:
                    number = entry.name.removesuffix(_ENDING)
                    if number.isdecimal() and entry.name == f"{int(number):05d}{_ENDING}":
                        found[int(number)] = entry.stat(follow_symlinks=False).st_size
        except OSError:
            return None
        return found

    def _note_sizes(self, sizes: dict[int, int], now: float) -> list[LostRank]:
        """Note which files have grown; return the lost ranks among them."""
        back = []
        for number, size in sizes.items():
            rank = self._ranks.get(number)
            if rank is None or size != rank.size:
                if rank is None:
                    self._unknown.append(number)
                self._ranks[number] = _Watched(size, grew_at=now, look_again_at=now)
                if number in self._lost:
                    back.append(self._lost.pop(number))
        return back

    def _note_locks(self) -> None:
        """Note whose locks on another machine are seen from here: one that is gone later is a process that is gone."""
        for _ in range(min(_MOST_LOCKS, len(self._unknown))):
            number = self._unknown.popleft()
            if self._judge.process(rank_file(self._folder, number), self._session) is None:
                self._unknown.append(number)

    def _find_lost(self, now: float) -> list[LostRank]:
        quiet = [
            (rank.look_again_at, number)
            for number, rank in self._ranks.items()
            if number
            and number not in self._lost
            and now - rank.grew_at >= at.DEAD_RANK_S
            and now >= rank.look_again_at
        ]
        # Those that were looked at the longest ago come first.
        due = [number for _, number in sorted(quiet)[:_MOST_LOOKED_UP]]
        if not due:
            return []
        files = {number: rank_file(self._folder, number) for number in (0, *due)}
        tails = {}
        for number, tail in self._judge.read(files).items():
            rank = self._ranks[number]
            has_ended = tail.session != self._session or tail.end is not None
            # If it writes again, its file grows.
            rank.look_again_at = math.inf if has_ended else now + _LOOK_UP_AGAIN_S
            # One that has grown since it was listed, or is seen late by a file server, has its turn later.
            if not has_ended and (not number or tail.size == rank.size):
                # No clock of a machine or file server says as surely how long it has been.
                tails[number] = replace(tail, changed_at=rank.grew_at)
        return self._judge.judge(files, tails, now=now, is_live=True) if 0 in tails else []

    def _changed(self, found: list[LostRank], back: list[LostRank], step: int) -> list[Finding]:
        self._lost |= {each.rank: each for each in found}
        news = {each.kind for each in (*found, *back)}
        changed = []
        for kind in (RANK_DEAD, RANK_SILENT):
            if kind in news:
                left = [each for each in self._lost.values() if each.kind == kind]
                finding = make_finding(
                    left or [each for each in back if each.kind == kind],
                    self._hosts(),
                    session=self._session,
                    step=step,
                    known_by=self._open.pop(kind, None),
                    resolved_step=None if left else step,
                )
                if left:
                    self._open[kind] = finding.id
                changed.append(finding)
        return changed

    def _hosts(self) -> dict[int, str]:
        """Return the machines of the ranks that are watched, and of rank 0."""
        numbers = list(self._ranks)[:_MOST_HOSTS]
        return self._judge.hosts(
            {number: rank_file(self._folder, number) for number in numbers}, self._session
        )


@dataclass(slots=True)
class _Watched:
    """The file of one rank."""

    size: int
    grew_at: float
    look_again_at: float
