"""Reads runs for tests: all at once, or as they grow."""

from __future__ import annotations

from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.importers.source import read_all


def points_in(batches, into=None):
    """Return the points by piece, session and metric, in order."""
    found = {} if into is None else into
    for batch in batches:
        if batch.replaced:
            found.clear()
        for column in batch.columns:
            if not column.repeated:
                rows = zip(column.steps, map(repr, column.times), map(repr, column.values), strict=True)
                found.setdefault((column.piece, column.session, column.metric), []).extend(rows)
    return found


def only_run(path, **options):
    (source,) = find_sources(path, **options).runs
    return source


def cold(path, **options):
    """Return all points of the only run at `path`."""
    return points_in(read_all(only_run(path, **options)))
