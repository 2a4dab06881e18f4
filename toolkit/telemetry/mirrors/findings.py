"""The sink that examines the run's own records, and records what it finds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.runfolder.control import as_id
from toolkit.telemetry.runfolder.records import FINDING, Record

if TYPE_CHECKING:
    from toolkit.telemetry.diagnostics.examiner import Examiner
    from toolkit.telemetry.diagnostics.finding import Finding
    from toolkit.telemetry.diagnostics.policy import Policy
    from toolkit.telemetry.diagnostics.rank_files import RankFiles
    from toolkit.telemetry.diagnostics.rank_watch import RankWatch
    from toolkit.telemetry.diagnostics.resume.watch import ResumeWatch

_REST_FOR_WORK: Final = 3.0
"""While earlier sessions are read: seconds of sleep per second of work, so that training is not slowed down."""
_LONGEST_REST_S: Final = 0.5

_AT_ONCE_S: Final = 0.0012
"""How long records are read and examined before the training thread gets the interpreter."""
_AT_A_TIME: Final = 8
_BREATH_S: Final = 0.0005
_READING_S: Final = 0.002
"""A batch that comes within so many seconds was read and parsed since the last one, which held the interpreter, too."""

_RANKS_EVERY_S: Final = 2.0
"""How often the files of the other ranks are read. Finding a slow rank takes dozens of steps anyway."""
_WATCH_EVERY_S: Final = 0.9
"""How often it is looked whether they still grow."""
_RANK_BYTES: Final = 2 * 1024 * 1024
"""Read at once, some thousand lines; the rest is read the next time."""
_LAST_RANK_BYTES: Final = 16 * 1024 * 1024
_DYING_S: Final = 0.4
"""The processes of a node that dies are gone within so many seconds of the first."""


class FindingsSink:
    """Examines the records of the run as they reach the file, and writes a `finding` record for each change.

    It starts with the first record of the first session: a resumed run remembers its best validation loss. Findings
    that earlier sessions have reported are not reported again. `first` is given each batch before it is examined, so
    that what else is collected from all records costs no second reading of the file.
    """

    name = "findings"
    only_reads = True
    """It never changes a record, so that it can share them with other mirrors."""

    def __init__(
        self,
        make_policy: Callable[[], Policy],
        *,
        session: int,
        put: Callable[[str, dict[str, Any]], None],
        ask: Callable[[str, str], None],
        on_news: Callable[[], None],
        guard: Guard,
        ranks: RankFiles | None = None,
        rank_watch: RankWatch | None = None,
        resume_watch: ResumeWatch | None = None,
        first: Callable[[Sequence[Record]], None] = lambda _batch: None,
    ) -> None:
        self.in_a_hurry = False
        """Set before waiting for this sink: then it does not sleep."""
        self._make_policy = make_policy
        self._session = session
        self._put = put
        self._ask = ask
        self._on_news = on_news
        self._guard = guard
        self._reported: dict[str, Finding] = {}
        """What the newest record of each finding says."""
        self._waiting: dict[str, Finding] = {}
        self._ranks = ranks
        self._rank_watch = rank_watch
        self._resume_watch = resume_watch
        self._first = first
        self._ranks_at = self._watched_at = -math.inf
        self._ran_since = self._ran_until = -math.inf
        self._is_now = False
        """Whether the file has been read up to this session."""

    # With the first batch or finding, mostly in the background: the detectors are many modules.

    @cached_property
    def _policy(self) -> Policy:
        return self._make_policy()

    @cached_property
    def _examiner(self) -> Examiner:
        from toolkit.telemetry.diagnostics.examiner import Examiner

        return Examiner(self._policy)

    def write(self, batch: Sequence[Record]) -> None:
        """Examine `batch`, the next records of the file."""
        began = time.monotonic()
        with self._guard.catch("collecting the evaluations"):
            self._first(batch)
        if self._resume_watch is not None:
            with self._guard.catch("collecting what a resume is compared with"):
                self._resume_watch.take(batch)
        changed = self._examine(batch)
        for record in batch:
            if record.get("event") == FINDING and record.get("session") != self._session:
                from toolkit.telemetry.diagnostics.finding import finding_from

                finding = finding_from(record)
                if finding is not None:
                    self._reported[finding.id] = finding
        self._waiting.update((finding.id, finding) for finding in changed)
        self._is_now = not batch or batch[-1].get("session") == self._session
        if not self._is_now:
            # Earlier sessions: their own findings may follow later in the file.
            if not self.in_a_hurry:
                time.sleep(min(_REST_FOR_WORK * (time.monotonic() - began), _LONGEST_REST_S))
            return
        self._report_waiting()
        if self._resume_watch is not None:
            self._judge_resume(self._resume_watch)

    def _judge_resume(self, watch: ResumeWatch) -> None:
        with self._guard.catch("judging the resume"):
            found = watch.look()
            if found is not None:
                self.report_live(found, {})
        if watch.is_over:
            self._resume_watch = None

    def _examine(self, records: Sequence[Record]) -> list[Finding]:
        now = time.monotonic()
        if now - self._ran_until > _READING_S:
            self._ran_since = now
        changed = self._examiner.take(self._with_pauses(records))
        self._ran_until = time.monotonic()
        return changed

    def _with_pauses(self, records: Sequence[Record]) -> Iterator[Record]:
        """Yield `records`, and let the training thread have the interpreter if it could not for a while."""
        for at, record in enumerate(records):
            if (
                not at % _AT_A_TIME
                and not self.in_a_hurry
                and time.monotonic() - self._ran_since > _AT_ONCE_S
            ):
                time.sleep(_BREATH_S)
                self._ran_since = time.monotonic()
            yield record

    def _report_waiting(self) -> None:
        for finding in self._waiting.values():
            known = self._reported.get(finding.id)
            if known is None or _essence(known) != _essence(finding):
                self._report(finding)
        self._waiting.clear()

    def caught_up(self) -> None:
        """Examine what the other ranks have written, if that is due; called when the file has been read to its end."""
        now = time.monotonic()
        if self._ranks is None or not self._is_now:
            return
        if self.in_a_hurry or now - self._ranks_at >= _RANKS_EVERY_S:
            self._ranks_at = now
            records = self._ranks.read(_LAST_RANK_BYTES if self.in_a_hurry else _RANK_BYTES)
            self._waiting.update((finding.id, finding) for finding in self._examine(records))
            self._report_waiting()
        if self._rank_watch is not None and (self.in_a_hurry or now - self._watched_at >= _WATCH_EVERY_S):
            self._watched_at = now
            for finding in self._rank_watch.look(self._examiner.last_step):
                self.report_live(finding, {})

    def open_by_severity(self) -> dict[str, int]:
        """Return how many findings of each severity are open, so that a list of runs needs no records."""
        from toolkit.telemetry.diagnostics.finding import CRITICAL, WARNING

        severities = [finding.severity for finding in list(self._reported.values()) if finding.is_open]
        return {
            f"findings_{name}": severities.count(name) for name in (CRITICAL, WARNING) if name in severities
        }

    def conclude(self, *, has_failed: bool = False) -> None:
        """Write a last record for each open finding of this session that has changed since its last one.

        If the run failed, also name ranks that died.
        """
        if has_failed and self._rank_watch is not None:
            found = self._rank_watch.last_look(self._examiner.last_step)
            if found:
                time.sleep(_DYING_S)
                found = self._rank_watch.last_look(self._examiner.last_step) or found
            for finding in found:
                self.report_live(finding, {})
        # The end record comes next: nothing is reported after it.
        self._ranks = self._rank_watch = None
        from toolkit.telemetry.diagnostics.catalogue import REPORTED_BY_RUNS

        for finding in self._examiner.findings():
            is_from_run = finding.kind in REPORTED_BY_RUNS
            is_news = finding.is_open and finding != self._reported.get(finding.id)
            if is_news and finding.session == self._session and not is_from_run:
                self._put(FINDING, fields_of(finding))

    def report_live(self, finding: Finding, more: Mapping[str, Any]) -> None:
        """Report a finding of the live run itself, such as a hang, with `more` fields for its record."""
        from toolkit.telemetry.diagnostics.catalogue import CATALOGUE
        from toolkit.telemetry.diagnostics.finding import INFO

        usual = CATALOGUE[finding.kind].severity
        found = INFO if finding.severity == INFO else None
        severity = self._policy.severity(finding.kind, usual=usual, found=found)
        if severity is not None:
            self._report(replace(finding, severity=severity), more)

    def close(self) -> None:
        """Do nothing."""

    def _report(self, finding: Finding, more: Mapping[str, Any] | None = None) -> None:
        from toolkit.telemetry.diagnostics.catalogue import WRONG_CALL
        from toolkit.telemetry.diagnostics.finding import CRITICAL, WARNING

        known = self._reported.get(finding.id)
        self._reported[finding.id] = finding
        fields = {**fields_of(finding), **(more or {})}
        is_worse = known is None or (known.kind, known.severity) != (finding.kind, finding.severity)
        is_news = is_worse and finding.session == self._session
        action = None
        if is_news and finding.is_open and finding.severity == CRITICAL:
            action = self._policy.actions.get(finding.kind)
        if action is not None:
            fields["asks_for"] = action
        self._put(FINDING, fields)
        # A wrong call was said by the guard.
        if is_news and finding.severity in (WARNING, CRITICAL) and finding.kind != WRONG_CALL:
            self._on_news()
            self._guard.say(f"{finding.severity}: {finding.message}")
        if action is not None:
            self._ask(action, request_id_of(finding))


def request_id_of(finding: Finding) -> str:
    """Return the id of the control request that `finding` makes."""
    return as_id(f"finding:{finding.kind}:{finding.id}")


def _essence(finding: Finding) -> tuple[object, ...]:
    # A finding about several ranks is reported again when there are more of them.
    of_ranks = tuple(finding.evidence.get(name) for name in ("ranks", "spread"))
    return finding.kind, finding.severity, finding.state, finding.repeats, of_ranks


def fields_of(finding: Finding) -> dict[str, Any]:
    """Return the fields of the record of `finding`."""
    fields: Mapping[str, Any] = finding.to_fields()
    # The `session` of the record itself is the one that writes it.
    return {
        "global_step": finding.noticed_step if finding.is_open else finding.resolved_step,
        **{name: value for name, value in fields.items() if name != "session" and value is not None},
        "began_in_session": finding.session,
    }
