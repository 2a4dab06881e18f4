"""Runs every detector over the records of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from toolkit.telemetry.diagnostics import detectors
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE, HANG, REPORTED_BY_RUNS, finding_of
from toolkit.telemetry.diagnostics.confidence import confidence_of
from toolkit.telemetry.diagnostics.detector import Detector
from toolkit.telemetry.diagnostics.finding import INFO, RESOLVED, WARNING, Finding, finding_from
from toolkit.telemetry.diagnostics.hung_ranks import HungRanks
from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import FARTHEST, LOSS, OPPONENT, REWARD, Row
from toolkit.telemetry.diagnostics.plugins import make_plugins
from toolkit.telemetry.diagnostics.policy import Policy
from toolkit.telemetry.diagnostics.thresholds import CONFIDENCE_TO_WARN
from toolkit.telemetry.runfolder.records import END, ENVIRONMENT, FINDING, START, STEP, Record
from toolkit.telemetry.runfolder.untrusted import mapping_in, whole_in

_LOOP_EVENTS: Final = (STEP, "")
"""Events whose step decreases only if the run goes back.

An evaluation may be logged a little late, and other records may count differently.
"""
_Plan = list[Callable[[Row], None]]
"""What reads a record with certain signals, in this order."""
_MOST_PLANS: Final = 256
_FIRST_PLUGIN: Final = 100
_FIRST_RULE: Final = 500
_MOST_REPORTED: Final = 1_000
"""Findings reported by the run itself that are kept; each is a pause of a minute or more."""


class Examiner:
    """Reads a run's records in order, in chunks of any size, and finds what is wrong.

    Memory use is bounded. The same records give the same findings, whether they come one by one from a live run or all
    at once from its file.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._incidents = Incidents()
        self._row = Row()
        self._last_step = 0
        self._loop_step: int | None = None
        # By their place in the list of all, which is the order in which they look at a record.
        self._detectors: dict[int, Detector] = {}
        self._not_made = dict(enumerate(detectors.DETECTORS))
        self._make_detectors(frozenset())
        if self._policy.rules:
            from toolkit.telemetry.diagnostics.rules import OwnRule

            rules = (OwnRule(self._incidents, rule) for rule in self._policy.rules)
            self._detectors.update(enumerate(rules, _FIRST_RULE))
        self._has_plugins = False
        self._made_late: set[str] = set()
        self._plans: dict[tuple[bool, tuple[str, ...]], _Plan] = {}
        self._reported_by_run: dict[str, Finding] = {}
        self._hung_ranks = HungRanks()
        self._other_ranks: set[int] = set()

    def take(self, records: Iterable[Record]) -> list[Finding]:
        """Read `records`; return the findings that are new, changed or resolved since the last call."""
        for record in records:
            self._examine(record)
        return self._findings_of(self._incidents.take_changed())

    def _examine(self, record: Record) -> None:
        row, incidents = self._row, self._incidents
        row.read(record, self._last_step)
        if row.rank and record.get("session", incidents.session) != incidents.session:
            return
        if row.event in (FINDING, END):
            self._take_hang(record, row.rank)
        if row.event == FINDING or (row.event == END and row.rank):
            if row.rank == 0:
                self._add_reported(record)
            return
        is_rank_0 = row.rank == 0
        if is_rank_0:
            # Only rank 0: the result must be the same without the files of the other ranks.
            incidents.rows += 1
            loss = row.values.get(LOSS)
            if loss is not None and loss - loss == 0.0:
                incidents.train_losses.append(loss)
                if incidents.first_train_loss is None:
                    incidents.first_train_loss = loss
        else:
            self._make_late(detectors.SEVERAL_RANKS)
            self._other_ranks.add(row.rank)
        values, shape = row.values, row.shape
        if row.event == STEP and is_rank_0 and row.step > self._last_step and values:
            # The common case: the loop advances.
            self._last_step = self._loop_step = row.step
        elif row.event == START:
            self._begin_session(record)
        elif row.event == ENVIRONMENT:
            found = whole_in(mapping_in(record.get("cpu")).get("logical"))
            incidents.processors = found or incidents.processors
        elif is_rank_0 and values:
            self._follow_steps(row)
        if is_rank_0 and len(values) == len(shape.fields):
            plan = shape.plan
            if plan is None:
                plan = shape.plan = self._plan(True, tuple(values))
        else:
            plan = self._plan(is_rank_0, tuple(values))
        for take in plan:
            take(row)

    @property
    def last_step(self) -> int:
        """The step that rank 0 is at."""
        return self._last_step

    def findings(self) -> list[Finding]:
        """Return every incident so far, in the order of detection."""
        return self._findings_of(self._incidents.by_id.values())

    def _plan(self, is_rank_0: bool, signals: tuple[str, ...]) -> _Plan:
        """Return the detectors for a record with these signals, in the order of the list."""
        key = (is_rank_0, signals)
        plan = self._plans.get(key)
        if plan is None:
            reads = {"*", *signals}
            if is_rank_0 and not reads.isdisjoint((REWARD, OPPONENT)):
                self._incidents.loss_may_rise = True
            self._make_detectors(reads)
            if not self._has_plugins:
                # Not before the first record: a live run has come to its background thread then.
                self._has_plugins = True
                self._detectors.update(enumerate(make_plugins(self._incidents), _FIRST_PLUGIN))
            plan = [
                detector.take
                for _, detector in sorted(self._detectors.items())
                if (is_rank_0 or detector.all_ranks) and not reads.isdisjoint(detector.signals)
            ]
            if len(self._plans) < _MOST_PLANS:
                self._plans[key] = plan
        return plan

    def _make_detectors(self, reads: AbstractSet[str]) -> None:
        """Make the detectors for records with these signals, and those that most records need."""
        for turn, file in list(self._not_made.items()):
            if file not in detectors.READ_SELDOM or not reads.isdisjoint(detectors.READ_SELDOM[file]):
                self._detectors[turn] = detectors.make_detector(file, self._incidents)
                del self._not_made[turn]

    def _make_late(self, reason: str) -> None:
        """Make the detectors for which there is only now a reason, such as a record of a second rank."""
        if reason not in self._made_late:
            self._made_late.add(reason)
            self._make_detectors({reason})
            self._plans.clear()
            self._row.forget_plans()

    def _begin_session(self, record: Record) -> None:
        planned = record.get("max_steps")
        if type(planned) is int and 0 <= planned < FARTHEST:
            self._incidents.planned_steps = planned
        ranks = record.get("world_size")
        if type(ranks) is int and 0 < ranks < FARTHEST:
            self._incidents.ranks = ranks
            if ranks > 1:
                self._make_late(detectors.SEVERAL_RANKS)
        if "job_end_time" in record:
            self._make_late(detectors.TIME_LIMIT)
        session = record.get("session")
        if type(session) is int and self._incidents.session < session < FARTHEST:
            self._incidents.session = session
            self._close_reported()
            self._hung_ranks, self._other_ranks = HungRanks(), set()
            self._restart()

    def _follow_steps(self, row: Row) -> None:
        step = row.step
        if row.event in _LOOP_EVENTS:
            before, self._loop_step = self._loop_step, step
            if before is not None and step < before:
                self._last_step = step
                self._restart()
                return
        if step > self._last_step:
            self._last_step = step

    def _add_reported(self, record: Record) -> None:
        """Take over a finding that only a live run can make."""
        reported = finding_from(record)
        if reported is not None and reported.kind in REPORTED_BY_RUNS:
            self.add(reported)

    def _take_hang(self, record: Record, rank: int) -> None:
        found = self._hung_ranks.take(record, rank, known=self._other_ranks, world=self._incidents.ranks)
        if found is not None:
            self.add(found)
            if found.id in self._reported_by_run:
                self._incidents.mark_changed(self._incidents.by_id[found.id])

    def add(self, reported: Finding) -> None:
        """Take a finding that needs more than records: of the live run itself, or of the files of other ranks."""
        if reported.id not in self._reported_by_run and len(self._reported_by_run) >= _MOST_REPORTED:
            return
        usual = CATALOGUE[reported.kind].severity
        found = INFO if reported.severity == INFO else None
        severity = self._policy.severity(reported.kind, usual=usual, found=found)
        if severity is None:
            return
        if reported.kind == HANG:
            self._incidents.hang_step = reported.start_step
        self._reported_by_run[reported.id] = replace(reported, severity=severity)
        if reported.id not in self._incidents.by_id:
            # To keep its position among the others.
            self._incidents.by_id[reported.id] = Incident(
                id=reported.id,
                kind=reported.kind,
                metric=reported.metric,
                start_step=reported.start_step or 0,
                noticed_step=reported.latest_step or 0,
                session=reported.session,
            )

    def _close_reported(self) -> None:
        """Resolve open findings of earlier sessions, which could not do it themselves."""
        for reported in self._reported_by_run.values():
            if reported.is_open and reported.session < self._incidents.session:
                over = replace(
                    reported, state=RESOLVED, end_step=reported.noticed_step, resolved_step=self._last_step
                )
                self._reported_by_run[reported.id] = over
                self._incidents.mark_changed(self._incidents.by_id[reported.id])

    def _restart(self) -> None:
        self._incidents.hang_step = None
        for _, detector in sorted(self._detectors.items()):
            detector.restart(self._last_step)

    def _findings_of(self, incidents: Iterable[Incident]) -> list[Finding]:
        return [finding for incident in incidents if (finding := self._finding(incident)) is not None]

    def _finding(self, incident: Incident) -> Finding | None:
        if incident.id in self._reported_by_run:
            return self._reported_by_run[incident.id]
        about = self._policy.about(incident.kind)
        found, confidence = incident.severity, confidence_of(incident)
        is_too_weak = confidence is not None and confidence < CONFIDENCE_TO_WARN
        if is_too_weak and (found or about.severity) == WARNING:
            found = INFO
        severity = self._policy.severity(incident.kind, usual=about.severity, found=found)
        if severity is None:
            return None
        return finding_of(incident, about, severity, confidence)


def examine(records: Iterable[Record], policy: Policy | None = None) -> Sequence[Finding]:
    """Return what is wrong with the run that wrote `records`."""
    examiner = Examiner(policy)
    examiner.take(records)
    return examiner.findings()
