"""A run of a store as the content of a report, from the same columns as its pages."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final

from toolkit.diagnostics.ending import Endings
from toolkit.diagnostics.finding import Finding, finding_from
from toolkit.reports.content import RunContent, masked, window_of
from toolkit.reports.curve import SECONDS, STEP, Curve, Point, Stretch
from toolkit.reports.document import Picture
from toolkit.reports.read_content import POINTS, small_picture
from toolkit.runfolder import records as kinds
from toolkit.runfolder.metric_meaning import NOT_RESULTS
from toolkit.runs.files.samples import samples_of_run
from toolkit.runs.formatting import count
from toolkit.runs.listing.run_start import start_of
from toolkit.runs.store import MetricInfo, Refused, RunCard, RunStore, Series

_MAX_METRICS: Final = 100
_MAX_EVENTS: Final = 2_000
_MAX_FINDINGS: Final = 1_000
_MAX_EVIDENCE: Final = 20
_MAX_PICTURES: Final = 6
_MAX_FILE: Final = 20_000_000
_WAIT_S: Final = 20.0
_ENDING_KINDS: Final = (kinds.ERROR, kinds.SPAN_START, kinds.SPAN, kinds.FINDING, kinds.LOST, kinds.END)


def content_of_run(store: RunStore, key: str, *, name: str | None = None, points: int = POINTS) -> RunContent:
    """Return what a report says about a run, from the records that have been read so far, and call it `name`.

    The detectors and the ledger get a while to reach the last record; what they have not reached is said in a note.
    """
    notes = []
    deadline = time.monotonic() + _WAIT_S
    while (examined := store.examine(key, wait_s=1.0)) < 1.0 and time.monotonic() < deadline:
        pass
    if examined < 1.0:
        notes.append(f"The detectors have seen {examined:.0%} of the records.")
    spent = store.time_spent(key, wait_s=max(0.1, deadline - time.monotonic()))
    health, card, meta = store.refresh(key, wait_s=1.0), store.card(key), store.meta(key)
    if not health.complete:
        notes.append(f"{health.fraction_read:.0%} of the records have been read.")
    if card.problem:
        notes.append(card.problem)
    curves = {info.name: _curve(store, card, info, points) for info in _chosen(store.metrics(key))}
    findings = _findings(store, key)
    start = start_of(store, key)
    endings = Endings()
    endings.take(reversed(store.events(key, _ENDING_KINDS, limit=_MAX_EVENTS)))
    ending = None if meta.manifest is None else endings.ending(meta.manifest, time.time())
    cause = None if ending is None else ending.error
    config = start.get("config")
    return masked(
        RunContent(
            name=name or card.name,
            logged_by=card.logged_by or "",
            status=card.status.name,
            why=card.status.why,
            step=card.step,
            max_steps=card.max_steps,
            started=card.created,
            duration_s=card.duration_s,
            records=health.records,
            bad_lines=health.bad_count,
            notes=notes,
            curves={name: curve for name, curve in curves.items() if curve.records},
            evidence=_evidence(store, key, card, findings, curves, points),
            settings=card.config,
            config=config if isinstance(config, dict) else None,
            findings=findings,
            errors=[error for error in endings.errors() if error != cause],
            ending=ending,
            control={} if meta.manifest is None else meta.manifest.control,
            ledger=spent.ledger,
            pictures=_pictures(store, key),
        )
    )


def _chosen(metrics: Sequence[MetricInfo]) -> list[MetricInfo]:
    return [info for info in metrics if not info.name.startswith(NOT_RESULTS)][:_MAX_METRICS]


def _curve(store: RunStore, card: RunCard, info: MetricInfo, points: int) -> Curve:
    series = store.series(card.key, info.name, axis="step", buckets=max(1, points // 4))
    axis = STEP
    if series.empty:
        # Measurements of the machine have no step.
        series = store.series(card.key, info.name, axis="elapsed", buckets=max(1, points // 4))
        axis = SECONDS
    return curve_of(series, run=card.name, event=info.event, axis=axis, last=info.last)


def curve_of(
    series: Series, *, run: str, event: str = "step", axis: str = STEP, last: float = math.nan
) -> Curve:
    """Return a series of a store as a curve of a report."""
    parts = tuple(
        tuple(Point(x, y) for x, y in zip(segment.x.tolist(), segment.y.tolist(), strict=True))
        for segment in (*series.superseded, *series.segments)
    )
    finite = [point for part in parts for point in part if math.isfinite(point.y)]
    return Curve(
        metric=series.metric,
        run=run,
        event=event,
        axis=axis,
        parts=tuple(part for part in parts if part),
        records=series.total,
        not_finite=sum(one.count for one in series.stretches),
        stretches=tuple(Stretch(one.first_x, one.last_x, one.count) for one in series.stretches),
        last=last,
        low=min(finite, key=lambda point: point.y, default=None),
        high=max(finite, key=lambda point: point.y, default=None),
    )


def _findings(store: RunStore, key: str) -> list[Finding]:
    """Return the run's newest record of each finding, else what the detectors found."""
    found: dict[str, Finding] = {}
    for record in reversed(store.events(key, (kinds.FINDING,), limit=_MAX_FINDINGS)):
        finding = finding_from(record)
        if finding is not None:
            found[finding.id] = finding
    for finding in store.findings(key):
        # The detectors may be ahead of the last record that the run wrote about it.
        if finding.id not in found or finding.count > found[finding.id].count:
            found[finding.id] = finding
    return list(found.values())


def _evidence(
    store: RunStore,
    key: str,
    card: RunCard,
    findings: Sequence[Finding],
    curves: dict[str, Curve],
    points: int,
) -> dict[str, Curve]:
    found = {}
    for finding in findings[:_MAX_EVIDENCE]:
        whole = curves.get(finding.metric)
        if whole is None or whole.axis != STEP or not whole.parts:
            continue
        xs = [point.x for part in whole.parts for point in (part[0], part[-1])]
        window = window_of(finding, min(xs), max(xs))
        series = store.series(key, finding.metric, window=window, buckets=max(1, points // 8))
        found[finding.id] = curve_of(series, run=card.name, event=whole.event)
    return {known_by: curve for known_by, curve in found.items() if curve.records}


def _pictures(store: RunStore, key: str) -> list[Picture]:
    series = [one for one in samples_of_run(store, key) if all(each.kind == "image" for each in one.samples)]
    found = []
    for one in sorted(series, key=lambda one: -one.last_step)[:_MAX_PICTURES]:
        sample = one.samples[-1]
        step = "" if sample.step is None else f"step {count(sample.step)}: "
        try:
            data = store.read_file(key, sample.path, max_bytes=_MAX_FILE)
        except Refused:
            continue
        picture = small_picture(data, f"{step}{one.title}"[:300])
        if picture is not None:
            found.append(picture)
    return found
