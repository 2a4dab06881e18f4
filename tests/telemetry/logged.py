"""A logger that writes nothing but records, and what it wrote."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.fork_server import ROOT
from tests.records import read_records
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.machine import environment, start_look

PATIENCE_S = 60.0
"""How long a test waits for what comes soon, unless the machine pauses."""

QUIET = {"system": False, "csv": False, "close_timeout": PATIENCE_S}
"""Options of a run without what a test does not ask for."""


def run_program(folder, *arguments, may_fail=False, **environment):
    """Run Python in a folder, with this project on its path, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert may_fail or done.returncode == 0, done.stderr[-3000:]
    return done


def make_logger(folder, name="r", **options):
    """Return a logger without the parts that a test does not ask for, and with time to end on a slow machine."""
    usual = {"system": False, "csv": False, "control": False, "output": False, "close_timeout": PATIENCE_S}
    return TelemetryLogger(name, **{"log_dir": folder, **usual, **options})


def records_of(log, event=None, *, of_any_type=False):
    """Return the records that are in the file once all is flushed, strictly parsed; only those of one kind if asked."""
    log.flush(PATIENCE_S)
    return read_records(log.run_folder, event, of_any_type=of_any_type)


def describe_at_once(monkeypatch, found):
    """Have `found` be all that loggers find of the machine, and known when they start: no record of it comes late."""
    monkeypatch.setattr(environment, "describe_environment", lambda guard, into: into.update(found))
    monkeypatch.setattr(start_look.Look, "start", lambda look: look._job.take_turn())
    monkeypatch.setattr(start_look, "settings", dict)


class Arriving:
    """Stands for the memory that a device delivers its numbers to."""

    def __init__(self):
        self.values = {}

    def read(self, place, kind):
        """Return the number at `place` once it was delivered."""
        return self.values.get(place)
