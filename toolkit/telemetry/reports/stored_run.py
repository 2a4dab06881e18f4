"""A run of a store as the content of a report, from the same columns as its pages."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final

from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.reports.content import RunContent, masked, steps_of, window_of
from toolkit.telemetry.reports.document import SECONDS, STEP, Curve, NonFinite, Picture, Point
from toolkit.telemetry.runfolder.metrics import NOT_RESULTS
from toolkit.telemetry.runs.files.sample_files import sample_file
from toolkit.telemetry.runs.files.samples import samples_of_run
from toolkit.telemetry.runs.findings.health import health
from toolkit.telemetry.runs.formatting import count
from toolkit.telemetry.runs.store import MetricInfo, Refused, RunCard, RunStore, Series

_POINTS: Final = 2_400
"""Kept of a curve, at most."""
_MIN_POINTS: Final = 120
_POINTS_OF_ALL: Final = 3_000
_MAX_METRICS: Final = 100
_MAX_EVIDENCE: Final = 20
_MAX_PICTURES: Final = 6
_MAX_CAPTION: Final = 300


def points_for(runs: int) -> int:
    """Return how many points of a curve a report of several runs keeps, so that the file stays small."""
    return max(_MIN_POINTS, min(_POINTS, _POINTS_OF_ALL // max(1, runs)))


def content_of_run(
    store: RunStore,
    key: str,
    *,
    name: str | None = None,
    points: int = _POINTS,
    wait_s: float = 20.0,
    with_pictures: bool = True,
) -> RunContent:
    """Return what a report says about a run, and call it `name`.

    Reading gets about `wait_s`; what was not reached until then is said.
    """
    deadline = time.monotonic() + wait_s
    read = store.refresh(key, wait_s=wait_s)
    examined = store.examine(key, wait_s=max(0.0, deadline - time.monotonic()))
    found = health(store, key)
    notes = [*found.notes]
    spent = store.time_spent(key, wait_s=max(0.1, deadline - time.monotonic()))
    card = store.card(key)
    if not read.complete:
        notes.append(f"{read.fraction_read:.0%} of the records have been read.")
    infos = [info for info in store.metrics(key) if not info.name.startswith(NOT_RESULTS)][:_MAX_METRICS]
    curves = {info.name: _curve(store, card, info, points) for info in infos}
    pictures, problems = _pictures(store, key) if with_pictures else ([], [])
    # Without a run.json, only the records say how it ended.
    ending = found.ending if found.manifest is None else None
    return masked(
        RunContent(
            name=name or card.name,
            logged_by=card.logged_by or "",
            status=(ending and ending.status) or card.status.name,
            why=card.status.why if ending is None else ending.why,
            step=card.step,
            max_steps=card.max_steps,
            started=card.created,
            duration_s=card.duration_s,
            records=read.records,
            bad_lines=read.bad_count,
            is_cut=card.is_cut,
            findings=found.findings,
            errors=found.errors,
            ending=found.ending,
            control={} if found.manifest is None else found.manifest.control,
            examined=min(examined, read.fraction_read),
            notes=[*notes, *problems],
            curves={name: curve for name, curve in curves.items() if curve.records},
            evidence=_evidence(store, key, card, found.findings, curves, points),
            settings=card.config,
            # Of a part of the records, goodput would be wrong.
            ledger=spent.ledger if spent.fraction >= 1.0 else None,
            pictures=pictures,
        )
    )


def _curve(store: RunStore, card: RunCard, info: MetricInfo, points: int) -> Curve:
    series = store.series(card.key, info.name, axis="step", buckets=max(1, points // 4))
    axis = STEP
    if series.empty:
        # Measurements of the machine have no step.
        series = store.series(card.key, info.name, axis="elapsed", buckets=max(1, points // 4))
        axis = SECONDS
    return curve_of(series, run=card.name, event=info.event, axis=axis, last=info.last, records=info.count)


def curve_of(
    series: Series, *, run: str, records: int, event: str = "step", axis: str = STEP, last: float = math.nan
) -> Curve:
    """Return a curve of a store as one of a report."""
    parts = tuple(
        tuple(Point(x, y) for x, y in zip(segment.x.tolist(), segment.y.tolist(), strict=True))
        for segment in (*series.superseded, *series.segments)
    )
    return Curve(
        metric=series.metric,
        run=run,
        event=event,
        axis=axis,
        parts=tuple(part for part in parts if part),
        records=records,
        not_finite=tuple(NonFinite(one.first_x, one.last_x, one.count) for one in series.non_finite),
        last=last,
    )


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
        steps = None if whole is None else steps_of(whole)
        if whole is None or steps is None:
            continue
        window = window_of(finding, *steps)
        series = store.series(key, finding.metric, window=window, buckets=max(1, points // 8))
        found[finding.id] = curve_of(series, run=card.name, event=whole.event, records=series.total)
    return {known_by: curve for known_by, curve in found.items() if curve.records}


def _pictures(store: RunStore, key: str) -> tuple[list[Picture], list[str]]:
    """Return the newest image of each prompt or name, small, and why others are missing."""
    series = [one for one in samples_of_run(store, key) if all(each.kind == "image" for each in one.samples)]
    found, problems = [], []
    for one in sorted(series, key=lambda one: -one.last_step)[:_MAX_PICTURES]:
        sample = one.samples[-1]
        step = "" if sample.step is None else f"step {count(sample.step)}: "
        try:
            file = sample_file(store, key, sample.path, small=True)
        except Refused as error:
            problems.append(f"{one.title[:60]!r}: {error}")
            continue
        caption = f"{step}{one.title}"[:_MAX_CAPTION]
        found.append(Picture(data=file.data, content_type=file.content_type, caption=caption))
    return found, problems
