"""Count, total, p50, p95 and max of a run's spans by name, including spans that were not written one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.runfolder.records import SPAN_SUMMARY, Record
from toolkit.telemetry.runfolder.untrusted import is_number
from toolkit.telemetry.timing.record_fields import LONGEST_S

MOST_NAMES: Final = 500
"""Limit on different names: a log with a new name for each span would fill a page with rows."""
_LONGEST_NAME: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSummary:
    """The spans of one name. Times are in seconds."""

    count: int
    total: float
    p50: float
    p95: float
    longest: float


def summaries_in(record: Record) -> tuple[int, dict[str, SpanSummary]] | None:
    """Return the session of a summary record and its summaries, which are cumulative; None if it has none."""
    spans, session = record.get("span_times"), record.get("session")
    if record.get("event") != SPAN_SUMMARY or not isinstance(spans, dict):
        return None
    found = {
        str(name)[:_LONGEST_NAME]: summary
        for name, about in list(spans.items())[:MOST_NAMES]
        if (summary := _summary(about)) is not None
    }
    return (session if type(session) is int else 0), found


def together(parts: Sequence[SpanSummary]) -> SpanSummary:
    """Combine the summaries of several sessions; p50 and p95 are means weighted by the counts."""
    count = sum(part.count for part in parts)
    return SpanSummary(
        count=count,
        total=sum(part.total for part in parts),
        p50=sum(part.p50 * part.count for part in parts) / max(1, count),
        p95=sum(part.p95 * part.count for part in parts) / max(1, count),
        longest=max(part.longest for part in parts),
    )


class SpanSummaries:
    """Collects the newest summary of each session."""

    def __init__(self) -> None:
        self._by_session: dict[int, Mapping[str, SpanSummary]] = {}

    def take(self, records: Sequence[Record]) -> None:
        """Look for summaries among `records`."""
        for record in records:
            if record.get("event") == SPAN_SUMMARY and (found := summaries_in(record)) is not None:
                self._by_session[found[0]] = found[1]

    def by_name(self) -> dict[str, SpanSummary]:
        """Return the summaries over all sessions, longest total first."""
        parts: dict[str, list[SpanSummary]] = {}
        for summaries in self._by_session.values():
            for name, summary in summaries.items():
                parts.setdefault(name, []).append(summary)
        whole = {name: together(found) for name, found in parts.items()}
        return dict(sorted(whole.items(), key=lambda item: item[1].total, reverse=True))


def _summary(about: object) -> SpanSummary | None:
    if not isinstance(about, dict):
        return None
    count, total, half, most, longest = (
        _amount(about.get(name)) for name in ("count", "total", "p50", "p95", "max")
    )
    if count is None or total is None:
        return None
    return SpanSummary(
        count=int(min(count, 2**53)), total=total, p50=half or 0.0, p95=most or 0.0, longest=longest or 0.0
    )


def _amount(value: Any) -> float | None:
    # NaN fails the comparison.
    if is_number(value) and 0 <= value <= 1000 * LONGEST_S:
        return float(value)
    return None
