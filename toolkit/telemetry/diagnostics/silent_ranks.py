"""Which ranks died or fell silent while the others went on, and the findings about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

METRIC: Final = "global_step"
_BACK: Final = "back"
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
    node: str = ""
    """The node all of whose ranks are lost in the same way; empty where some are left."""


def silence_limit(tail: RankTail) -> float | None:
    """Return after how many seconds a rank counts as silent; None if it has too few records to tell its pace."""
    if tail.records < at.SILENT_RANK_RECORDS:
        return None
    return max(at.SILENT_RANK_S, at.SILENT_RANK_TIMES * tail.usual_s, at.SILENT_RANK_LONGEST * tail.longest_s)


def judge_silence(
    tail: RankTail, seconds: float, *, lives: bool | None, is_stopped: bool = False
) -> LostRank | None:
    """Return what is wrong with a rank without an end record that wrote nothing for `seconds` while others did."""
    if lives is False:
        return _lost(tail, RANK_DEAD, "", seconds)
    if lives and is_stopped:
        return _lost(tail, RANK_SILENT, "stopped", seconds)
    limit = silence_limit(tail)
    if limit is None or seconds < limit:
        return None
    return _lost(tail, RANK_SILENT, "alive" if lives else "", seconds)


def with_nodes(lost: Sequence[LostRank], hosts: Mapping[int, str]) -> list[LostRank]:
    """Return `lost` with the node of those whose node has two or more ranks, all of them lost in the same way.

    `hosts` are the machines of the ranks, as far as they are known.
    """
    ranks_of: dict[str, set[int]] = {}
    for rank, host in hosts.items():
        ranks_of.setdefault(host, set()).add(rank)
    found = []
    for each in lost:
        host = hosts.get(each.rank, "")
        there = ranks_of.get(host, set())
        is_whole = len(there) > 1 and there <= {other.rank for other in lost if other.kind == each.kind}
        found.append(replace(each, node=host if is_whole and len(ranks_of) > 1 else ""))
    return found


def read_tails(files: Mapping[int, Path]) -> dict[int, RankTail]:
    """Return the ends of the record files by rank; those that cannot be read are left out."""
    found = {}
    for rank, path in files.items():
        try:
            tail = read_tail(path, rank)
        except OSError:
            continue
        if tail is not None:
            found[rank] = tail
    return found


def lost_ranks(
    files: Mapping[int, Path],
    tails: Mapping[int, RankTail],
    *,
    now: float,
    is_live: bool,
) -> list[LostRank]:
    """Return the ranks of a run on disk that died or fell silent in its newest session, in order.

    The clock is the newest record of the others, so that a run that pauses as a whole has no silent rank. A rank that
    writes no system records is compared by steps: the others may wait in an evaluation. Ranks in a part are compared
    with each other only: the part may be an old copy, and from a machine with another clock.
    """
    session = max((tail.session for tail in tails.values()), default=0)
    folders: dict[Path, dict[int, RankTail]] = {}
    for rank, tail in tails.items():
        if tail.session == session:
            path = files[rank]
            folders.setdefault(path.parent.parent if rank else path.parent, {})[rank] = tail
    found: list[LostRank] = []
    for mine in folders.values():
        if len(mine) > 1:
            found += _lost_in_folder(files, mine, now=now, is_live=is_live and 0 in mine)
    return sorted(found, key=lambda each: each.rank)


def _lost_in_folder(
    files: Mapping[int, Path], mine: Mapping[int, RankTail], *, now: float, is_live: bool
) -> list[LostRank]:
    first = mine[min(mine)]
    signs = _TwoLatest(tail.last_time for tail in mine.values())
    steps = _TwoLatest(tail.last_step_time for tail in mine.values() if tail.last_step_time is not None)
    writes = _TwoLatest(tail.changed_at for tail in mine.values())
    # The ranks of a run that failed are stopped within seconds: the one without an end record may be the reason.
    has_failed = any(tail.end not in (None, FINISHED) for tail in mine.values())
    is_long_over = now - first.last_time > HEARTBEAT_TIMEOUT_S
    of_first = _process(files, first)
    # Its own records say nothing of this; the others then wait for it, or fail.
    is_first_gone = 0 in mine and first.end is None and _lives(of_first, files[0]) is False
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
        limit = silence_limit(tail)
        is_late = limit is not None and seconds >= limit
        is_asked = bool(rank) and (is_late or has_failed or (is_live and seconds >= at.DEAD_RANK_S))
        if not (is_asked or is_first_gone or not rank):
            continue
        checked += 1
        alive, is_stopped = None, False
        if checked <= _MOST_CHECKED:
            about = _process(files, tail)
            if about is None or of_first is None or about.host != of_first.host:
                # The clocks of two machines may differ by minutes; both files have the clock of one file system.
                seconds = min(seconds, writes.without(tail.changed_at) - tail.changed_at)
            alive = _lives(about, files[rank])
            is_stopped = about is not None and about.is_stopped()
        seconds = max(0.0, seconds)
        # Whether rank 0 is late is the status of the run.
        lost = judge_silence(tail, seconds if rank else 0.0, lives=alive, is_stopped=is_stopped)
        if lost is None and alive is None and has_failed and is_long_over:
            lost = _lost(tail, RANK_DEAD, "unseen", seconds)
        if lost is not None:
            found.append(lost)
            by_itself += [lost] if is_asked else []
    if len(found) == len(mine):
        # The run was lost as a whole, which is its status.
        found = by_itself
    hosts = (
        {rank: about.host for rank, tail in mine.items() if (about := _process(files, tail))}
        if len(found) > 1
        else {}
    )
    return with_nodes(found, hosts)


def _process(files: Mapping[int, Path], tail: RankTail) -> RankProcess | None:
    try:
        return process_of(files[tail.rank], tail.session)
    except OSError:
        return None


def _lives(about: RankProcess | None, path: Path) -> bool | None:
    try:
        return None if about is None else about.lives(path)
    except OSError:
        return None


def findings_about(lost: Iterable[LostRank], *, session: int, step: int) -> list[Finding]:
    """Return one finding for all dead ranks and one for all silent ones; `step` is where the run is now."""
    groups: dict[str, list[LostRank]] = {}
    for each in lost:
        groups.setdefault(each.kind, []).append(each)
    return [make_finding(group, session=session, step=step) for group in groups.values()]


def make_finding(
    lost: Sequence[LostRank],
    *,
    session: int,
    step: int,
    known_by: str | None = None,
    resolved_step: int | None = None,
) -> Finding:
    """Return the finding about ranks that are lost in the same way; the first of them comes first in `lost`."""
    worst = max(lost, key=lambda each: each.seconds)
    start = min(each.step for each in lost)
    kind = lost[0].kind
    incident = Incident(
        id=known_by or f"{session}-{kind}-rank_{lost[0].rank}-{start}",
        kind=kind,
        metric=METRIC,
        start_step=start,
        noticed_step=max(start, step),
        session=session,
    )
    variants = {each.variant for each in lost}
    # What holds for only some of them is not said of all.
    incident.variant = variants.pop() if len(variants) == 1 else ""
    incident.evidence.update(ranks_as_evidence(each.rank for each in lost))
    incident.evidence["seconds"] = float(round(worst.seconds))
    if resolved_step is not None:
        incident.variant = _BACK
        incident.end_step = incident.resolved_step = resolved_step
    finding = finding_of(incident)
    nodes = sorted({each.node for each in lost})
    if not nodes[0]:
        return finding
    ranks = ranks_in_words(incident.evidence)
    names = f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(nodes)}"
    return replace(finding, message=finding.message.replace(ranks, f"all of {names} ({ranks})", 1))


def not_yet_reported(lost: Iterable[LostRank], findings: Iterable[Finding], session: int) -> list[LostRank]:
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


def _lost(tail: RankTail, kind: str, variant: str, seconds: float) -> LostRank:
    return LostRank(rank=tail.rank, kind=kind, variant=variant, step=tail.last_step or 0, seconds=seconds)


class _TwoLatest:
    """The latest of several times, without any one of them."""

    def __init__(self, times: Iterable[float]) -> None:
        self._latest = sorted(times)[-2:]

    def without(self, time: float | None) -> float:
        others = list(self._latest)
        if time in others:
            others.remove(time)
        return others[-1] if others else float("-inf")
