"""The sink that watches the run's own records, and writes down what it finds wrong."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from toolkit.core.guard import Guard
from toolkit.diagnostics.catalogue import CATALOGUE, REPORTED_BY_RUNS
from toolkit.diagnostics.examiner import Examiner
from toolkit.diagnostics.finding import CRITICAL, INFO, OPEN, WARNING, Finding, finding_from
from toolkit.diagnostics.policy import Policy
from toolkit.diagnostics.rank_files import RankFiles
from toolkit.runfolder.control import as_id
from toolkit.runfolder.records import FINDING, Record

_REST_FOR_WORK: Final = 3.0
"""While earlier sessions are read again: seconds of rest for each second of work, so that the loop notices nothing."""
_LONGEST_REST_S: Final = 0.5

_RANKS_EVERY_S: Final = 2.0
"""How often the files of the other ranks are looked at. Finding a slow one takes dozens of steps anyway."""
_RANK_BYTES: Final = 2 * 1024 * 1024
"""Lines of theirs that are read at once, some thousand; what is left comes the next time."""
_LAST_RANK_BYTES: Final = 16 * 1024 * 1024

_Told = tuple[str, str, str, int]


class FindingsSink:
    """Examines the records of the run as they reach the file, and puts a `finding` record for each change.

    It starts with the first record of the first session: a resumed run remembers its best validation loss. What
    earlier sessions have already told is not told again.
    """

    name = "findings"

    def __init__(
        self,
        policy: Policy,
        *,
        session: int,
        put: Callable[[str, dict[str, Any]], None],
        ask: Callable[[str, str], None],
        on_news: Callable[[], None],
        guard: Guard,
        ranks: RankFiles | None = None,
    ) -> None:
        self.in_a_hurry = False
        """Set before waiting for this sink: then it does not rest."""
        self._examiner = Examiner(policy)
        self._policy = policy
        self._session = session
        self._put = put
        self._ask = ask
        self._on_news = on_news
        self._guard = guard
        self._told: dict[str, _Told] = {}
        self._waiting: dict[str, Finding] = {}
        self._ranks = ranks
        self._ranks_at = -math.inf
        self._is_now = False
        """Whether the file has been read up to this session."""

    def write(self, batch: Sequence[Record]) -> None:
        """Examine `batch`, the next records of the file."""
        began = time.monotonic()
        changed = self._examiner.take(batch)
        for record in batch:
            if record.get("event") == FINDING and record.get("session") != self._session:
                self._remember(finding_from(record))
        self._waiting.update((finding.id, finding) for finding in changed)
        self._is_now = not batch or batch[-1].get("session") == self._session
        if not self._is_now:
            # Earlier sessions: what they found may stand further on in the file.
            if not self.in_a_hurry:
                time.sleep(min(_REST_FOR_WORK * (time.monotonic() - began), _LONGEST_REST_S))
            return
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        for finding in self._waiting.values():
            if self._told.get(finding.id) != _essence(finding):
                self._tell(finding)
        self._waiting.clear()

    def caught_up(self) -> None:
        """Examine what the other ranks have written since the last time, where it is time for that.

        Called by whoever follows the file, each time that it has been read to its end.
        """
        is_due = self.in_a_hurry or time.monotonic() - self._ranks_at >= _RANKS_EVERY_S
        if self._ranks is None or not self._is_now or not is_due:
            return
        self._ranks_at = time.monotonic()
        records = self._ranks.read(_LAST_RANK_BYTES if self.in_a_hurry else _RANK_BYTES)
        self._waiting.update((finding.id, finding) for finding in self._examiner.take(records))
        self._tell_waiting()

    def open_by_severity(self) -> dict[str, int]:
        """Return how many findings of which severity go on, so that a list of runs needs no records."""
        severities = [severity for _, severity, state, _ in list(self._told.values()) if state == OPEN]
        return {
            f"findings_{name}": severities.count(name) for name in (CRITICAL, WARNING) if name in severities
        }

    def conclude(self) -> None:
        """Put the last word on what is still open: how far it has come."""
        # The end record comes next: nothing is found behind it.
        self._ranks = None
        for finding in self._examiner.findings():
            is_own_word = finding.kind in REPORTED_BY_RUNS
            if finding.is_open and finding.session == self._session and not is_own_word:
                self._put(FINDING, fields_of(finding))

    def tell_live(self, finding: Finding, more: Mapping[str, Any]) -> None:
        """Tell of what the live run noticed by its clock, with `more` fields that its record carries."""
        usual = CATALOGUE[finding.kind].severity
        found = INFO if finding.severity == INFO else None
        severity = self._policy.severity(finding.kind, usual=usual, found=found)
        if severity is not None:
            self._tell(replace(finding, severity=severity), more)

    def close(self) -> None:
        """Nothing is held."""

    def _remember(self, finding: Finding | None) -> None:
        if finding is not None:
            self._told[finding.id] = _essence(finding)

    def _tell(self, finding: Finding, more: Mapping[str, Any] | None = None) -> None:
        known = self._told.get(finding.id)
        self._remember(finding)
        fields = {**fields_of(finding), **(more or {})}
        is_worse = known is None or known[:2] != _essence(finding)[:2]
        is_news = is_worse and finding.session == self._session
        action = None
        if is_news and finding.is_open and finding.severity == CRITICAL:
            action = self._policy.actions.get(finding.kind)
        if action is not None:
            fields["asks_for"] = action
        self._put(FINDING, fields)
        if is_news and finding.severity in (WARNING, CRITICAL):
            self._on_news()
            # Standard error may be closed, or a pipe that nobody reads any more.
            with self._guard.catch("saying what was found"):
                print(f"[telemetry] {finding.severity}: {finding.message}", file=sys.stderr, flush=True)
        if action is not None:
            self._ask(action, request_id_of(finding))


def request_id_of(finding: Finding) -> str:
    """Return the id of the request that `finding` makes."""
    return as_id(f"finding:{finding.kind}:{finding.id}")


def _essence(finding: Finding) -> _Told:
    return finding.kind, finding.severity, finding.state, finding.repeats


def fields_of(finding: Finding) -> dict[str, Any]:
    """Return the fields of the record that tells of `finding`."""
    fields: Mapping[str, Any] = finding.to_fields()
    # The record's own session is the one that writes it.
    return {
        "global_step": finding.noticed_step if finding.is_open else finding.resolved_step,
        **{name: value for name, value in fields.items() if name != "session" and value is not None},
        "began_in_session": finding.session,
    }
