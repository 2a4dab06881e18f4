"""Which ranks died or fell silent while the others went on, and the findings about them.

The live run, the page and `telemetry doctor` all ask the judge in this file, so that they cannot disagree.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.catalogue import RANK_DEAD, RANK_SILENT, finding_of
from toolkit.telemetry.diagnostics.finding import (
    Finding,
    how_many_ranks,
    ranks_as_evidence,
    ranks_in,
    ranks_in_words,
)
from toolkit.telemetry.diagnostics.incident import Incident
from toolkit.telemetry.runfolder.node_folders import RankProcess, RankTail, process_of, read_tail
from toolkit.telemetry.runfolder.status import FINISHED, HEARTBEAT_TIMEOUT_S

_MOST_CHECKED: Final = 64
"""Ranks whose processes are looked up; of more, the rest is judged by time alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRank:
    """A rank that died or is silent."""

    rank: int
    kind: str
    """`rank_dead` or `rank_silent`."""
    variant: str
    """Which of its kind's messages fits."""
    step: int
    """The last step that it recorded; 0 if none."""
    seconds: float
    """How long it has been silent while others wrote."""


class LostRanks:
    """Reads what each rank wrote last, looks up its process, and says which ranks are lost.

    It remembers both: the end of a file is read again only where the file has changed.
    """

    def __init__(self) -> None:
        self.files: Mapping[int, Path] = {}
        self.tails: Mapping[int, RankTail] = {}
        self.lost: list[LostRank] = []
        """As of the last look, as are those two."""
        self._read: dict[int, tuple[tuple[str, int, int], RankTail | None]] = {}
        self._processes: dict[tuple[Path, int], RankProcess] = {}

    def read(self, files: Mapping[int, Path]) -> dict[int, RankTail]:
        """Return the ends of the record files by rank; those that cannot be read are left out."""
        found = {}
        for rank, path in files.items():
            with suppress(OSError):
                status = os.stat(path, follow_symlinks=False)
                version = (str(path), status.st_size, status.st_mtime_ns)
                if rank not in self._read or self._read[rank][0] != version:
                    self._read[rank] = version, read_tail(path, rank)
                tail = self._read[rank][1]
                if tail is not None:
                    found[rank] = tail
        return found

    def process(self, path: Path, session: int) -> RankProcess | None:
        """Return the process that writes to the record file at `path`; None if that is unknown."""
        if (path, session) not in self._processes:
            with suppress(OSError):
                process = process_of(path, session)
                if process is not None:
                    self._processes[path, session] = process
        return self._processes.get((path, session))

    def _lives(self, path: Path, tail: RankTail) -> bool | None:
        try:
            process = self.process(path, tail.session)
            lives = None if process is None else process.lives(path)
            # It may have written its end record just before it ended.
            return None if lives is False and os.stat(path).st_size != tail.size else lives
        except OSError:
            return None

    def hosts(self, files: Mapping[int, Path], session: int) -> dict[int, str]:
        """Return the machines of the ranks, as far as they are known."""
        found = {rank: self.process(path, session) for rank, path in files.items()}
        return {rank: process.host for rank, process in found.items() if process is not None}

    def judge(
        self, files: Mapping[int, Path], tails: Mapping[int, RankTail], *, now: float, is_live: bool
    ) -> list[LostRank]:
        """Return the ranks of a run that died or fell silent in its newest session, in order.

        How long a rank is silent is measured to the newest record of the others, so that a run that pauses as a whole
        has no silent rank. A rank that writes no system records is compared by steps: the others may wait in an
        evaluation. Ranks in a part are compared with each other only: the part may be an old copy, and from a machine
        with another clock. `now` is of the clock by which the files of the `tails` changed.
        """
        session = _newest_session(tails)
        folders: dict[Path, dict[int, RankTail]] = {}
        for rank, tail in tails.items():
            if tail.session == session:
                path = files[rank]
                folders.setdefault(path.parent.parent if rank else path.parent, {})[rank] = tail
        found: list[LostRank] = []
        for mine in folders.values():
            if len(mine) > 1:
                found += self._judge_folder(files, mine, now=now, is_live=is_live and 0 in mine)
        return sorted(found, key=lambda each: each.rank)

    def _judge_folder(
        self, files: Mapping[int, Path], mine: Mapping[int, RankTail], *, now: float, is_live: bool
    ) -> list[LostRank]:
        number = min(mine)
        first, of_first = mine[number], self.process(files[number], mine[number].session)
        signs = _TwoLatest(tail.last_time for tail in mine.values())
        steps = _TwoLatest(tail.last_step_time for tail in mine.values() if tail.last_step_time is not None)
        writes = _TwoLatest(tail.changed_at for tail in mine.values())
        # The ranks of a run that failed are stopped within seconds: the one without an end record may be the reason.
        has_failed = any(tail.end not in (None, FINISHED) for tail in mine.values())
        first_lives = self._lives(files[number], first)
        # By its records: a copy may be new. A live run, which has a clock of its own, knows that rank 0 lives.
        is_long_over = not first_lives and now - first.last_time > HEARTBEAT_TIMEOUT_S
        # Its own records say nothing of this; the others then wait for it, or fail.
        is_first_gone = not number and first.end is None and first_lives is False
        found: list[LostRank] = []
        by_itself: list[LostRank] = []
        checked = 0
        for rank, tail in mine.items():
            if tail.end is not None:
                continue
            if tail.has_system or first.end is not None or tail.last_step_time is None:
                seconds = signs.without(tail.last_time) - tail.last_time
            else:
                seconds = steps.without(tail.last_step_time) - tail.last_step_time
            is_quiet = is_live and max(seconds, now - tail.changed_at) >= at.DEAD_RANK_S
            is_asked = bool(rank) and (_is_late(tail, seconds) or has_failed or is_quiet)
            if not (is_asked or is_first_gone or not rank):
                continue
            checked += 1
            about, alive = None, None
            if checked <= _MOST_CHECKED:
                about, alive = self.process(files[rank], tail.session), self._lives(files[rank], tail)
                if is_live or about is None or of_first is None or about.host != of_first.host:
                    # The clocks of two machines may differ by minutes, and a clock may be set while a run is watched;
                    # both files have the clock of one file system, or of the one that watches them.
                    seconds = min(seconds, writes.without(tail.changed_at) - tail.changed_at)
            seconds = max(0.0, seconds)
            is_stopped = about is not None and about.is_stopped()
            if alive is False:
                kind, variant = RANK_DEAD, ""
            elif alive and is_stopped:
                kind, variant = RANK_SILENT, "stopped"
            elif rank and _is_late(tail, seconds):
                # Whether rank 0 is late is the status of the run.
                kind, variant = RANK_SILENT, "alive" if alive else ""
            elif alive is None and has_failed and is_long_over:
                kind, variant = RANK_DEAD, "unseen"
            else:
                continue
            step = tail.last_step or 0
            found.append(LostRank(rank=rank, kind=kind, variant=variant, step=step, seconds=seconds))
            by_itself += found[-1:] if is_asked else []
        # A run that was lost as a whole has the status for it.
        return by_itself if len(found) == len(mine) else found

    def look(self, files: Mapping[int, Path], *, now: float, is_live: bool) -> None:
        """Look at the record files of a run on disk."""
        self.files, self.tails = files, self.read(files)
        self.lost = self.judge(files, self.tails, now=now, is_live=is_live)

    def findings(self, reported: Iterable[Finding]) -> list[Finding]:
        """Return one finding for all dead ranks and one for all silent ones, but those that the run has `reported`."""
        session = _newest_session(self.tails)
        groups: dict[str, list[LostRank]] = {}
        for each in _not_yet_reported(self.lost, reported, session):
            groups.setdefault(each.kind, []).append(each)
        step = (self.tails[0].last_step if 0 in self.tails else None) or 0
        hosts = self.hosts({rank: self.files[rank] for rank in self.tails}, session) if groups else {}
        return [make_finding(group, hosts, session=session, step=step) for group in groups.values()]


def _newest_session(tails: Mapping[int, RankTail]) -> int:
    """Return the newest session of any rank."""
    return max((tail.session for tail in tails.values()), default=0)


def _is_late(tail: RankTail, seconds: float) -> bool:
    """Return whether a rank is silent for longer than its pace explains, if it has enough records to tell that."""
    limit = max(
        at.SILENT_RANK_S, at.SILENT_RANK_TIMES * tail.usual_s, at.SILENT_RANK_LONGEST * tail.longest_s
    )
    return tail.records >= at.SILENT_RANK_RECORDS and seconds >= limit


def make_finding(
    lost: Sequence[LostRank],
    hosts: Mapping[int, str],
    *,
    session: int,
    step: int,
    known_by: str | None = None,
    resolved_step: int | None = None,
) -> Finding:
    """Return the finding about ranks that are lost in the same way; the first of them comes first in `lost`.

    `hosts` are the machines of all ranks, as far as they are known.
    """
    start = min(each.step for each in lost)
    kind = lost[0].kind
    incident = Incident(
        id=known_by or f"{session}-{kind}-rank_{lost[0].rank}-{start}",
        kind=kind,
        metric="global_step",
        start_step=start,
        noticed_step=max(start, step),
        session=session,
    )
    variants = {each.variant for each in lost}
    # What holds for only some of them is not said of all.
    incident.variant = variants.pop() if len(variants) == 1 else ""
    incident.evidence.update(ranks_as_evidence(each.rank for each in lost))
    incident.evidence["seconds"] = float(round(max(each.seconds for each in lost)))
    if resolved_step is not None:
        incident.variant = "back"
        incident.end_step = incident.resolved_step = resolved_step
    finding = finding_of(incident)
    nodes = _whole_nodes({each.rank for each in lost}, hosts)
    if not nodes:
        return finding
    ranks = ranks_in_words(incident.evidence)
    names = f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(nodes)}"
    return replace(finding, message=finding.message.replace(ranks, f"all of {names} ({ranks})", 1))


def _whole_nodes(lost: set[int], hosts: Mapping[int, str]) -> list[str]:
    """Return the nodes with two or more ranks each that make up `lost`; empty if it is not made up of whole nodes."""
    nodes = {hosts.get(rank, "") for rank in lost}
    on_them = [host for host in hosts.values() if host in nodes]
    is_whole = {rank for rank, host in hosts.items() if host in nodes} == lost
    has_others = len(set(hosts.values())) > 1
    return sorted(nodes) if is_whole and has_others and min(map(on_them.count, nodes)) > 1 else []


def _not_yet_reported(lost: Iterable[LostRank], findings: Iterable[Finding], session: int) -> list[LostRank]:
    """Return those of `lost` that no finding of the run itself names."""
    known: set[int] = set()
    for finding in findings:
        if finding.kind in (RANK_DEAD, RANK_SILENT) and finding.session == session and finding.is_open:
            named = ranks_in(finding.evidence)
            if how_many_ranks(finding.evidence) > len(named):
                # It counts ranks that it does not name.
                return []
            known.update(named)
    return [each for each in lost if each.rank not in known]


class _TwoLatest:
    """The latest of several times, without any one of them."""

    def __init__(self, times: Iterable[float]) -> None:
        self._latest = sorted(times)[-2:]

    def without(self, time: float | None) -> float:
        others = list(self._latest)
        if time in others:
            others.remove(time)
        return others[-1] if others else float("-inf")
