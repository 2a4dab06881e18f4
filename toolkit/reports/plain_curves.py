"""The curves of a run without numpy, for the bare install: all of a short one, else the extremes of each stretch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from toolkit.importers.source import NO_STEP, RunSource, named_columns, read_all
from toolkit.reports.document import SECONDS, STEP, Curve, NonFinite, Point


def plain_curves(source: RunSource, run: str, *, points: int, limit_s: float) -> dict[str, Curve]:
    """Return every metric of a run as a curve of about `points` points; reading ends after `limit_s`."""
    found: dict[str, tuple[str, list[Point], list[Point]]] = {}
    for batch in read_all(source, limit_s=limit_s):
        if batch.replaced:
            found.clear()
        for name, column in named_columns(source.info, batch):
            _, by_step, by_time = found.setdefault(name, (column.kind, [], []))
            for step, when, value in zip(column.steps, column.times, column.values, strict=True):
                (by_time if step == NO_STEP else by_step).append(
                    Point(when if step == NO_STEP else step, value)
                )
    begin = min((point.x for _, _, by_time in found.values() for point in by_time), default=0.0)
    curves = {}
    for name, (kind, by_step, by_time) in found.items():
        logged = by_step or [Point(point.x - begin, point.y) for point in by_time]
        finite = [point for point in logged if math.isfinite(point.y)]
        parts: list[list[Point]] = []
        for point in logged:
            if not parts or point.x < parts[-1][-1].x:
                parts.append([])
            parts[-1].append(point)
        runs = (
            list(group) for is_odd, group in groupby(logged, lambda one: not math.isfinite(one.y)) if is_odd
        )
        curves[name] = Curve(
            metric=name,
            run=run,
            event=kind,
            axis=STEP if by_step else SECONDS,
            parts=tuple(tuple(_extremes(part, 4 * len(logged) // points)) for part in parts),
            records=len(logged),
            not_finite=tuple(NonFinite(odd[0].x, odd[-1].x, len(odd)) for odd in runs),
            last=logged[-1].y if logged else math.nan,
            low=min(finite, key=lambda point: point.y, default=None),
            high=max(finite, key=lambda point: point.y, default=None),
        )
    return curves


def _extremes(points: Sequence[Point], of: int) -> Sequence[Point]:
    """Return the first, lowest, highest and last of every `of` points, and those that are no numbers."""
    if of <= 4:
        return points
    kept: set[int] = set()
    for start in range(0, len(points), of):
        places = range(start, min(start + of, len(points)))
        odd = [place for place in places if not math.isfinite(points[place].y)]
        order = sorted(set(places).difference(odd), key=lambda at: points[at].y)
        kept |= {places[0], places[-1], *odd[:1], *odd[-1:], *order[:1], *order[-1:]}
    return [points[place] for place in sorted(kept)]
