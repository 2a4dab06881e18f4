"""Watches the files of the other ranks of a live run: which of them grow no more."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.catalogue import RANK_DEAD, RANK_SILENT
from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.diagnostics.rank_differences import RankDifferences
from toolkit.telemetry.diagnostics.silent_ranks import (
    LostRank,
    judge_silence,
    make_finding,
    with_nodes,
)
from toolkit.telemetry.runfolder.layout import METRICS_JSONL, RANKS
from toolkit.telemetry.runfolder.node_folders import RankProcess, RankTail, has_lock, process_of, read_tail
from toolkit.telemetry.runfolder.process import host_name

_MOST_LOOKED_UP: Final = 16
"""Ranks whose file and process are looked at in one look; the others have their turn in the next."""
_LOOK_UP_AGAIN_S: Final = 5.0
"""A rank that is quiet for a good reason is looked at again after this long."""
_MOST_LOCKS: Final = 8
_MOST_HOSTS: Final = 256
"""Ranks whose locks are looked for in one look, and whose machines are compared once one is lost."""
_ENDING: Final = ".jsonl"


class RankWatch:
    """Looks at the sizes of all files, and reads the end of one only when it has not grown for a while.

    A rank without a file has not started. A rank that has ended, or whose newest records are of an earlier session, is
    not watched. Looking at the files of 1,000 ranks is one listing with their sizes.
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
        self._own_size = -1
        self._own_grew_at = 0.0
        self._step = -1
        self._stepped_at = 0.0
        self._open: dict[str, tuple[str | None, list[LostRank]]] = {}
        """Of each kind the id of the open finding, and the ranks that it is about."""
        self._differences = RankDifferences(folder, session=session)

    def look(self, step: int) -> list[Finding]:
        """Return the findings that are new or have changed; `step` is the one rank 0 is at."""
        now = self._now()
        sizes = self._sizes()
        if sizes is None:
            return []
        self._note_own(step, now)
        back = self._note_sizes(sizes, now)
        self._note_locks()
        lost = self._find_lost(now)
        return self._changed(lost, back, step) + self._differences.look(sorted(self._ranks), step)

    def last_look(self, step: int) -> list[Finding]:
        """Look up every process whose rank has not ended, as the run failed: a rank that died may be the reason."""
        now = self._now()
        self._note_sizes(self._sizes() or {}, now)
        for rank in self._ranks.values():
            rank.look_again_at = now
            rank.grew_at = min(rank.grew_at, now - at.DEAD_RANK_S)
        self._own_grew_at = self._stepped_at = now
        return self._changed(self._find_lost(now, most=len(self._ranks)), [], step)

    def _sizes(self) -> dict[int, int] | None:
        found = {}
        place = self._folder / RANKS
        try:
            if place.is_symlink():
                return None
            with os.scandir(place) as entries:
                for entry in entries:
                    number = entry.name.removesuffix(_ENDING)
                    if number.isdecimal() and entry.name == f"{int(number):05d}{_ENDING}":
                        found[int(number)] = entry.stat(follow_symlinks=False).st_size
        except OSError:
            return None
        return found

    def _note_own(self, step: int, now: float) -> None:
        try:
            size = os.stat(self._folder / METRICS_JSONL).st_size
        except OSError:
            size = self._own_size
        if size != self._own_size:
            self._own_size, self._own_grew_at = size, now
        if step != self._step:
            self._step, self._stepped_at = step, now

    def _note_sizes(self, sizes: dict[int, int], now: float) -> list[int]:
        """Note which files have grown; return the lost ranks among them."""
        back = []
        for number, size in sizes.items():
            rank = self._ranks.get(number)
            if rank is None:
                rank = self._ranks[number] = _Watched(size=size, grew_at=now, look_again_at=now)
            elif size != rank.size:
                rank.size, rank.grew_at = size, now
                rank.tail, rank.has_ended, rank.look_again_at = None, False, now
                if rank.is_lost:
                    rank.is_lost = rank.has_process = False
                    back.append(number)
        return back

    def _note_locks(self) -> None:
        """Note whose locks on another machine are seen from here: one that is gone later is a process that is gone."""
        unknown = [item for item in self._ranks.items() if not item[1].has_process]
        for number, rank in unknown[:_MOST_LOCKS]:
            with suppress(OSError):
                self._process_of(self._file_of(number), rank)

    def _process_of(self, path: Path, rank: _Watched) -> RankProcess | None:
        if not rank.has_process:
            process = rank.process = process_of(path, self._session)
            if process is not None:
                rank.had_lock = process.may_be_gone() is None and has_lock(path) is True
                rank.has_process = True
        return rank.process

    def _file_of(self, number: int) -> Path:
        return self._folder / RANKS / f"{number:05d}{_ENDING}"

    def _find_lost(self, now: float, *, most: int = _MOST_LOOKED_UP) -> list[LostRank]:
        found: list[LostRank] = []
        quiet = [
            (number, rank)
            for number, rank in self._ranks.items()
            if not rank.has_ended
            and not rank.is_lost
            and now - rank.grew_at >= at.DEAD_RANK_S
            and now >= rank.look_again_at
        ]
        # Those that were looked at the longest ago come first.
        for number, rank in sorted(quiet, key=lambda item: item[1].look_again_at)[:most]:
            lost = self._judge(number, rank, now)
            if lost is not None:
                rank.is_lost = True
                found.append(lost)
        return found

    def _judge(self, number: int, rank: _Watched, now: float) -> LostRank | None:
        path = self._file_of(number)
        rank.look_again_at = now + _LOOK_UP_AGAIN_S
        try:
            process = self._process_of(path, rank)
            is_stopped = process is not None and process.is_stopped()
            may_be_gone = process is not None and (rank.had_lock or process.may_be_gone())
            if not may_be_gone and not is_stopped and now - rank.grew_at < at.SILENT_RANK_S:
                return None
            if rank.tail is None:
                rank.tail = read_tail(path, number)
            tail = rank.tail
            if tail is None or tail.session != self._session or tail.end is not None:
                # If it writes again, its file grows.
                rank.has_ended = True
                return None
            if tail.size != rank.size:
                # Grown since it was listed, or seen late by a file server.
                rank.tail = None
                return None
            alive = None if process is None else process.lives(path, had_lock=rank.had_lock)
        except OSError:
            return None
        return judge_silence(tail, self._seconds(tail, rank), lives=alive, is_stopped=is_stopped)

    def _seconds(self, tail: RankTail, rank: _Watched) -> float:
        """Return for how long others have written since this rank last did."""
        others = [self._stepped_at]
        if tail.has_system:
            others.append(self._own_grew_at)
            others += [other.grew_at for other in self._ranks.values() if other is not rank]
        return max(0.0, max(others) - rank.grew_at)

    def _changed(self, lost: list[LostRank], back: list[int], step: int) -> list[Finding]:
        changed = []
        for kind in (RANK_DEAD, RANK_SILENT):
            new = [each for each in lost if each.kind == kind]
            known_by, before = self._open.pop(kind, (None, []))
            over = [each for each in before if each.rank in back]
            now = [each for each in before if each not in over]
            if new or over:
                now = with_nodes(now + new, self._hosts())
                finding = make_finding(
                    now or over,
                    session=self._session,
                    step=step,
                    known_by=known_by,
                    resolved_step=None if now else step,
                )
                known_by = finding.id
                changed.append(finding)
            if now:
                self._open[kind] = known_by, now
        return changed

    def _hosts(self) -> dict[int, str]:
        """Return the machines of the ranks that are watched, and of rank 0."""
        found = {0: host_name()}
        for number, rank in list(self._ranks.items())[:_MOST_HOSTS]:
            with suppress(OSError):
                process = self._process_of(self._file_of(number), rank)
                if process is not None:
                    found[number] = process.host
        return found


@dataclass(slots=True)
class _Watched:
    """The file of one rank."""

    size: int
    grew_at: float
    look_again_at: float
    tail: RankTail | None = None
    process: RankProcess | None = None
    has_process: bool = False
    """Whether its process is known."""
    had_lock: bool = False
    """Whether its lock was seen from here, where it runs on another machine."""
    has_ended: bool = False
    is_lost: bool = False
