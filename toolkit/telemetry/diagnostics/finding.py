"""A finding: what is wrong, since which step, the evidence, likely causes and what to try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from toolkit.telemetry.diagnostics.error_details import Detail, details_of
from toolkit.telemetry.runfolder.records import ERROR, FINDING, LOST, Record
from toolkit.telemetry.runfolder.untrusted import is_number, mapping_in, number_in, texts_in, whole_in

INFO: Final = "info"
WARNING: Final = "warning"
CRITICAL: Final = "critical"
SEVERITIES: Final = (INFO, WARNING, CRITICAL)
"""Mildest first."""

OPEN: Final = "open"
RESOLVED: Final = "resolved"

RECORDS_LOST: Final = "records lost"
_NOT_WRITTEN: Final = frozenset({"event", "time", "details"})
"""What the record of a finding has by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The current state of one incident of a run; for a list of all that is wrong also an error, or lost records.

    An incident keeps its `id` while it grows, gets worse and is resolved; the newest record with an id is valid.
    """

    id: str
    kind: str
    severity: str
    event: str = FINDING
    """The kind of record it is from; empty for what no record says."""
    metric: str = ""
    """The metric in which it was found."""
    start_step: int | None
    """The first affected step; None only of an error, of lost records or of a record of another form."""
    end_step: int | None = None
    """The last affected step; None while it is open."""
    noticed_step: int | None = None
    """The step at which it was detected: there was not enough evidence before. None where the first may be."""
    session: int = 1
    """The session in which it started."""
    state: str = OPEN
    resolved_step: int | None = None
    """The step at which it was found to be over."""
    count: int = 1
    """Affected records."""
    repeats: int = 0
    """How often it came back soon after it was over."""
    time: float | None = field(default=None, compare=False)
    """When the run first recorded it; None if it did not."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    causes: tuple[str, ...] = ()
    """Most likely first."""
    advice: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    """Names of knobs and actions that would help, best first, if the run declares them."""
    confidence: float | None = None
    """The share of findings like this that were right on labelled runs; None if there was none of its kind."""
    details: tuple[Detail, ...] = field(default=(), compare=False)
    """Further details of its record: stacks, the last output, open spans."""

    @property
    def is_open(self) -> bool:
        """Whether it is not resolved yet."""
        return self.state == OPEN

    @property
    def latest_step(self) -> int | None:
        """The step at which it was detected, or its first one; None if neither is known."""
        return self.start_step if self.noticed_step is None else self.noticed_step

    @property
    def acknowledged_key(self) -> str:
        """The key stored when it is marked as seen: a spike that becomes a divergence is new again."""
        return self.id if self.event != FINDING or f"-{self.kind}-" in self.id else f"{self.id}:{self.kind}"

    def to_fields(self) -> dict[str, Any]:
        """Return the finding as the fields of a `finding` record, and as `telemetry doctor --json` prints it."""
        names = [name for name in self.__dataclass_fields__ if name not in _NOT_WRITTEN]
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        fields["evidence"] = dict(self.evidence)
        for name in ("causes", "advice", "remedies"):
            fields[name] = list(fields[name])
        return fields


def finding_from(record: Record) -> Finding | None:
    """Return the finding in a `finding` record of ours; None if the record has another form."""
    texts = [record.get(name) for name in ("id", "kind", "severity", "metric", "message", "state")]
    if not all(isinstance(text, str) for text in texts):
        return None
    if record["severity"] not in SEVERITIES or record["state"] not in (OPEN, RESOLVED):
        return None
    if whole_in(record.get("start_step")) is None or whole_in(record.get("noticed_step")) is None:
        return None
    return Finding(
        id=record["id"],
        kind=record["kind"],
        severity=record["severity"],
        metric=record["metric"],
        start_step=record["start_step"],
        end_step=whole_in(record.get("end_step")),
        noticed_step=record["noticed_step"],
        session=whole_in(record.get("began_in_session", record.get("session"))) or 1,
        state=record["state"],
        resolved_step=whole_in(record.get("resolved_step")),
        count=whole_in(record.get("count")) or 1,
        repeats=whole_in(record.get("repeats")) or 0,
        evidence=_numbers(record.get("evidence")),
        message=record["message"],
        causes=tuple(texts_in(record.get("causes"))),
        advice=tuple(texts_in(record.get("advice"))),
        remedies=tuple(texts_in(record.get("remedies"))),
        confidence=_share_or_none(record.get("confidence")),
        time=number_in(record.get("time")),
        details=details_of(record),
    )


def problem_from(record: Record) -> Finding:
    """Return the problem in a finding record of any form, an error record or one about lost records."""
    finding = finding_from(record) if record.get("event") == FINDING else None
    if finding is not None:
        return finding
    event, severity, message = str(record.get("event")), record.get("severity"), record.get("message")
    kind = {ERROR: "error", LOST: RECORDS_LOST}.get(event, str(record.get("kind", "finding")))
    if severity not in SEVERITIES:
        severity = CRITICAL if event == ERROR else WARNING
    if event == LOST:
        message = f"{record.get('records')} records were lost: {record.get('reason')}"
    step, times = record.get("start_step", record.get("global_step")), record.get("count")
    return Finding(
        id=str(record.get("id") or f"{event}-{record.get('seq')}-{record.get('time')}"),
        kind=kind,
        severity=str(severity),
        event=event,
        metric=str(record.get("metric") or ("" if event == ERROR else "train_loss")),
        start_step=whole_in(step),
        time=number_in(record.get("time")),
        count=times if event == ERROR and type(times) is int and times > 0 else 1,
        evidence=mapping_in(record.get("evidence")),
        message=str(message or kind),
        causes=tuple(texts_in(record.get("causes") or record.get("likely_causes"))),
        advice=tuple(texts_in(record.get("advice") or record.get("try"))),
        details=details_of(record),
    )


def merged_by_id(newest_first: Iterable[Finding]) -> dict[str, Finding]:
    """Return one finding per id: what its newest record says, with the time of the oldest."""
    found: dict[str, Finding] = {}
    for finding in newest_first:
        newest = found.setdefault(finding.id, finding)
        # Only one of them has the stacks of all threads.
        found[finding.id] = replace(newest, time=finding.time, details=newest.details or finding.details)
    return found


def latest_findings(reported: Iterable[Finding], detected: Iterable[Finding]) -> list[Finding]:
    """Return each finding once, by when it was noticed: as reported by the run, newest first, or else as detected.

    One that was reported has the latest count of the detectors.
    """
    found = merged_by_id(reported)
    for finding in detected:
        known = found.setdefault(finding.id, finding)
        is_same = all(
            getattr(known, name) == getattr(finding, name) for name in ("kind", "state", "start_step")
        )
        # With a lower count, the detectors have not reached it yet.
        if is_same and finding.count >= known.count:
            newer = {name: getattr(finding, name) for name in ("count", "evidence", "message", "confidence")}
            found[finding.id] = replace(known, **newer)
    return sorted(found.values(), key=lambda finding: (finding.session, finding.latest_step or 0))


def _share_or_none(value: object) -> float | None:
    return float(value) if is_number(value) and 0.0 <= value <= 1.0 else None


def _numbers(value: object) -> dict[str, float]:
    return {name: number for name, number in mapping_in(value).items() if is_number(number)}


_MOST_NAMED: Final = 16
"""Ranks that a finding names; the rest is counted."""
_MOST_IN_WORDS: Final = 8
_FIRST: Final = "rank"
_ALL: Final = "ranks"


def ranks_as_evidence(ranks: Iterable[int]) -> dict[str, float]:
    """Return the evidence that names `ranks`: `rank`, `rank_2`, `rank_3`, … and how many they are."""
    ordered = sorted(ranks)
    named = {
        _FIRST if number == 1 else f"{_FIRST}_{number}": float(rank)
        for number, rank in enumerate(ordered[:_MOST_NAMED], start=1)
    }
    return {**named, _ALL: float(len(ordered))}


def is_about_ranks(name: str) -> bool:
    """Return whether the evidence called `name` is one of those."""
    return name in (_FIRST, _ALL) or (name.startswith(f"{_FIRST}_") and name[len(_FIRST) + 1 :].isdigit())


def ranks_in(evidence: Mapping[str, Any]) -> list[int]:
    """Return the ranks that the evidence of a finding names."""
    names = [_FIRST, *(f"{_FIRST}_{number}" for number in range(2, _MOST_NAMED + 1))]
    values = [evidence.get(name) for name in names]
    # A run folder is not trusted.
    return [int(value) for value in values if isinstance(value, (int, float)) and 0 <= value < 1e9]


def how_many_ranks(evidence: Mapping[str, Any]) -> int:
    """Return how many ranks a finding is about, with those that are not named."""
    said = evidence.get(_ALL)
    named = len(ranks_in(evidence))
    return max(named, int(said)) if isinstance(said, (int, float)) and 0 <= said < 1e9 else named


def ranks_in_words(evidence: Mapping[str, Any]) -> str:
    """Return the ranks as words: "rank 3", "ranks 3 and 5", "ranks 3, 5, 6 and 9 more"."""
    named = [f"{rank:,}" for rank in ranks_in(evidence)]
    count = how_many_ranks(evidence)
    if not named:
        return "no rank"
    if count == 1:
        return f"rank {named[0]}"
    if count <= _MOST_IN_WORDS:
        return f"ranks {', '.join(named[:-1])} and {named[-1]}"
    return f"ranks {', '.join(named[:_MOST_IN_WORDS])} and {count - _MOST_IN_WORDS:,} more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A knob or action that the run declares."""

    name: str
    is_knob: bool
    about: Mapping[str, Any] = field(default_factory=dict)
    """A knob's bounds and current value, from the manifest."""


def find_remedy(remedies: Sequence[str], control: Mapping[str, Any]) -> Remedy | None:
    """Return the first of `remedies` that is declared in `control`, from the manifest, or None."""
    return next(declared_remedies(remedies, control), None)


def declared_remedies(remedies: Sequence[str], control: Mapping[str, Any]) -> Iterator[Remedy]:
    """Yield those of `remedies` that are declared in `control`, in order."""
    knobs, actions = control.get("knobs"), control.get("actions")
    for name in remedies:
        if isinstance(knobs, Mapping) and name in knobs:
            about = knobs[name]
            yield Remedy(name=name, is_knob=True, about=about if isinstance(about, Mapping) else {})
        elif isinstance(actions, (list, tuple)) and name in actions:
            yield Remedy(name=name, is_knob=False)
