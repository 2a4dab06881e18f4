"""Which rank the others wait for when none advances: what all ranks say in their reports about the hang is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from toolkit.telemetry.diagnostics.catalogue import HANG, RANK_HUNG, finding_of
from toolkit.telemetry.diagnostics.finding import OPEN, RESOLVED, Finding, ranks_as_evidence
from toolkit.telemetry.diagnostics.incident import Incident
from toolkit.telemetry.diagnostics.thresholds import STALL_LOUD_S
from toolkit.telemetry.runfolder.records import END, Record
from toolkit.telemetry.runfolder.status import FINISHED
from toolkit.telemetry.runfolder.untrusted import mapping_in, number_in, texts_in, whole_in

_MOST_RANKS: Final = 4_096
_LONGEST: Final = 300
_MOST_PLACES: Final = 3
_ENDED: Final = "the end of its run"


class _Report(NamedTuple):
    """Where one rank is."""

    step: int
    seconds: float
    line: str = _ENDED
    collective: str = ""
    """What it waits in, or may wait in; empty if it waits for no other rank."""
    is_sure: bool = False
    """Whether it certainly waits in that."""
    tensors: tuple[str, ...] = ()
    groups: Mapping[str, int] = {}
    """How many collectives it has begun in each process group."""
    is_idle: bool = True


class HungRanks:
    """Takes the reports of all ranks, and makes one finding once each has said where it is.

    A rank that has not reported may work, save or evaluate: until it does, nothing is said.
    """

    def __init__(self) -> None:
        self._reports: dict[int, _Report] = {}
        self._found: Finding | None = None

    def take(self, record: Record, rank: int, *, known: set[int], world: int) -> Finding | None:
        """Take a record of `rank`, and return the finding if it changes; `known` are the ranks that write records."""
        if len(self._reports) >= _MOST_RANKS or (record.get("event") != END and record.get("kind") != HANG):
            return None
        if record.get("event") == END:
            # Others may wait for it from now on, and say so later. One that failed or was stopped has its own records.
            self._reports.pop(rank, None)
            if record.get("status") == FINISHED:
                self._reports[rank] = _Report(whole_in(record.get("global_step")) or 0, 0.0)
            return None
        if record.get("state") != OPEN:
            self._reports.pop(rank, None)
            return self._resolved(whole_in(record.get("resolved_step")) or 0)
        report = _report(record)
        if report is not None:
            self._reports[rank] = report
        if self._found is not None or not {0, *known} <= self._reports.keys():
            return None
        self._found = _judge(self._reports, session=whole_in(record.get("session")) or 1, world=world)
        return self._found

    def _resolved(self, step: int) -> Finding | None:
        found, self._found = self._found, None
        if found is None:
            return None
        # It comes back under its id if the same step hangs again.
        message = f"{found.message} It went on at step {step:,}."
        return replace(found, state=RESOLVED, end_step=step, resolved_step=step, message=message)


def _report(record: Record) -> _Report | None:
    where, step = mapping_in(record.get("where")), whole_in(record.get("start_step"))
    if step is None or not isinstance(where.get("line"), str):
        return None
    groups = {
        str(name): count for name, count in mapping_in(where.get("groups")).items() if type(count) is int
    }
    return _Report(
        step=step,
        seconds=number_in(mapping_in(record.get("evidence")).get("seconds")) or 0.0,
        line=where["line"][:_LONGEST],
        collective=str(where.get("collective") or "")[:_LONGEST],
        is_sure=where.get("is_sure") is True,
        tensors=tuple(texts_in(where.get("tensors"))),
        groups=groups,
        is_idle=where.get("is_idle") is True,
    )


def _judge(reports: Mapping[int, _Report], *, session: int, world: int) -> Finding | None:
    hung = _not_with_the_others(reports)
    seconds = max(each.seconds for each in reports.values())
    if not hung and not (len(reports) >= max(world, 2) and all(each.is_sure for each in reports.values())):
        return None
    # One that works, such as in an evaluation of its own, may be done soon.
    is_stuck = all(reports[rank].is_sure or reports[rank].is_idle for rank in hung)
    if not is_stuck and seconds < STALL_LOUD_S:
        return None
    step = reports[min(reports)].step
    incident = Incident(
        id=f"{session}-{RANK_HUNG}-{step}",
        kind=RANK_HUNG,
        metric="global_step",
        start_step=step,
        noticed_step=step,
        session=session,
        variant="" if hung else "together",
        evidence={**(ranks_as_evidence(hung) if hung else {}), "seconds": float(round(seconds))},
    )
    others = [report for rank, report in reports.items() if rank not in hung]
    finding = finding_of(incident)
    return replace(finding, message=f"{finding.message[:-1]}: {_places(reports, hung, others)}.")


def _not_with_the_others(reports: Mapping[int, _Report]) -> set[int]:
    """Return the ranks that are not where the others wait; empty if that cannot be said."""
    loose = {rank for rank, report in reports.items() if not report.is_sure}
    free = {rank for rank in loose if not reports[rank].collective}
    among = free if 2 * len(free) <= len(reports) and free else loose
    # What a rank may wait in, such as the backward pass, says less than how many collectives it has begun.
    behind = _behind(reports) & among
    hung = behind or (among if len(among) < len(reports) else set())
    if not loose:
        hung = _odd(reports)
    return hung if 0 < 2 * len(hung) <= len(reports) else set()


def _behind(reports: Mapping[int, _Report]) -> set[int]:
    """Return the ranks that have begun fewer collectives in a group than others, and wait for no one in another."""
    behind, waiting = set(), set()
    for group in {name for report in reports.values() for name in report.groups}:
        begun = {rank: report.groups[group] for rank, report in reports.items() if group in report.groups}
        behind |= {rank for rank, count in begun.items() if count < max(begun.values())}
        waiting |= {rank for rank, count in begun.items() if count > min(begun.values())}
    return behind - waiting


def _odd(reports: Mapping[int, _Report]) -> set[int]:
    """Return the ranks that wait elsewhere than most do, with other tensors, or after more or fewer collectives."""
    shared = set.intersection(*(set(report.groups) for report in reports.values()))
    for what in (
        {rank: (report.collective, report.line) for rank, report in reports.items()},
        {rank: report.tensors for rank, report in reports.items()},
        {rank: tuple(report.groups[name] for name in sorted(shared)) for rank, report in reports.items()},
    ):
        usual, count = Counter(what.values()).most_common(1)[0]
        if count < len(reports):
            return (
                {rank for rank, each in what.items() if each != usual} if 2 * count > len(reports) else set()
            )
    return set()


def _places(reports: Mapping[int, _Report], hung: set[int], others: Sequence[_Report]) -> str:
    places = sorted({_place(reports[rank]) for rank in hung})
    usual = [place for place, _ in Counter(map(_place, others)).most_common(_MOST_PLACES)]
    waits = " or ".join(usual)
    if not hung:
        return waits
    if usual[0] in places:
        mine, theirs = (max(each.groups.values(), default=0) for each in (reports[min(hung)], others[0]))
        return f"{waits}, after {mine:,} collectives there and {theirs:,} on the others"
    they_are = "it is" if len(hung) == 1 else "they are"
    return f"{they_are} at {' and '.join(places[:_MOST_PLACES])}, while the others wait in {waits}"


def _place(report: _Report) -> str:
    if not report.collective:
        return report.line
    of = f" of {', '.join(report.tensors)}" if report.tensors else ""
    return f"{report.collective}{of} ({report.line})"
