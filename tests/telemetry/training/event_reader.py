"""Reads a training job's records: its spans and events; and a loop to record."""

from __future__ import annotations

from tests.telemetry.logged import records_of


def spans(log, name=None):
    """Return the finished spans, in the order in which they ended."""
    return [span for span in records_of(log, "span") if name is None or span["name"] == name]


def events(log, name):
    """Return the attributes of each event of a name."""
    return [event.get("attributes", {}) for event in records_of(log, "span_event") if event["name"] == name]


def train(log, clock, seconds):
    """Go through a training iteration for each of these durations."""
    for duration in seconds:
        with log.training.training_iteration():
            clock.advance(duration)
