"""A logger that writes nothing but records, and what it wrote."""

from __future__ import annotations

import json

from tests.field_types import wrong_types
from toolkit.telemetry import TelemetryLogger

PATIENCE_S = 60.0
"""How long a test waits for what comes in a moment, unless the machine pauses."""


def make_logger(folder, name="r", **options):
    """Return a logger without the parts that a test does not ask for, and with time to end on a slow machine."""
    usual = {"system": False, "csv": False, "control": False, "close_timeout": PATIENCE_S}
    return TelemetryLogger(name, **{"log_dir": folder, **usual, **options})


def records_of(log, event=None, *, of_any_type=False):
    """Return the records that are in the file once all is flushed, strictly parsed; only those of one kind if asked."""
    log.flush(PATIENCE_S)
    return read_records(log.run_folder / "metrics.jsonl", event, of_any_type=of_any_type)


def read_records(path, event=None, *, of_any_type=False):
    """Return the records of a file, each read as a strict parser would; each field has its one type.

    `of_any_type` is for tests whose caller gives something else under a name of ours.
    """

    def refuse(word):
        raise AssertionError(f"not strict JSON: {word}")

    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b"", "the file ends in a whole line"
    records = [json.loads(line, parse_constant=refuse) for line in lines]
    assert of_any_type or wrong_types(records) == []
    return [record for record in records if event is None or record["event"] == event]


class Arriving:
    """Stands for the memory that a device delivers its numbers to."""

    def __init__(self):
        self.values = {}

    def read(self, place, kind):
        """Return the number at `place` once it was delivered."""
        return self.values.get(place)
