"""A whole run, and all that reads one, on a system without the calls that only Unix has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from tests.faults.crash_checks import whole_run
from tests.records import with_event

ROOT = Path(__file__).parents[2]

# What others need is imported first: their packages have another implementation for such a system.
PREAMBLE = """
import asyncio, json, os, shutil, subprocess, sys, tempfile, time
import numpy, orjson, pandas, psutil, yaml
from tests.whole_path.another_system import become_another_system
"""

IS_KILLED = """
become_another_system()
from toolkit.telemetry import TelemetryLogger

class Slow:
    # By its clock the run was killed long ago: there is no process to look up on such a system.
    wall = staticmethod(lambda: time.time() - 1000)
    monotonic = staticmethod(time.monotonic)

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, clock=Slow(), close_timeout=60, flush_interval=60)
log.log_start(config={"lora": {"rank": 4}})
for step in range(100):
    log.log_step(step, train_loss=float("nan") if step == 55 else 1.0, **{f"metric_{step // 20}": step})
assert log.flush(60)
for step in range(100, 150):
    log.log_step(step, train_loss=1.0)
print(json.dumps(log.guard.counts), flush=True)
os._exit(9)
"""

RESUMES_AND_READS = """
from streamlit.testing.v1 import AppTest
become_another_system()
from toolkit.telemetry.cli.main import main
from toolkit.telemetry import TelemetryLogger

with TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, resume=True, close_timeout=60) as log:
    log.log_step(150, train_loss=1.0, made_later=1)
    with log.span("forward"):
        pass
    # While the run lives: whoever reads it has its files open, and they are replaced meanwhile.
    assert log.flush(60)
    pandas.read_csv(log.run_folder / "metrics.csv")
print(json.dumps(log.guard.counts))
run = str(log.run_folder)
codes = {}
for command in ("repair", "doctor", "show", "show --errors", "time", "setup usage"):
    codes[command] = main([*command.split(), run])
codes["trace"] = main(["export", "--to", "trace", run, "-o", sys.argv[1] + "/trace.json"])
codes["zip"] = main(["export", "--to", "zip", run, "-o", sys.argv[1] + "/shared.zip"])
print(json.dumps(codes))

from pathlib import Path
from toolkit.telemetry.runs.sources.local_store import LocalStore
from dashboard.settings import DashboardSettings
from tests.dashboard.views.conftest import _patient
from tests.dashboard.views.pages import EVERY_PAGE, OF_A_RUN, open_page
from tests.lengths import is_long

LocalStore.refresh = _patient(LocalStore.refresh)
LocalStore.examine = _patient(LocalStore.examine)
folder = Path(sys.argv[1])
DashboardSettings.in_use = DashboardSettings(log_dirs=(folder,), cache_dir=folder / "cache")
shown = {}
for page in EVERY_PAGE if is_long() else ("runs", "overview", "metrics", "alerts"):
    tab = open_page(page, *(["run"] if page in OF_A_RUN else []))
    shown[page] = {"exceptions": [str(error.value) for error in tab.exception], "text": tab.said()}
print(json.dumps(shown))
"""


@pytest.fixture
def elsewhere(tmp_path):
    """Run a script in a process of its own on such a system; returns its exit code and what it printed as JSON."""

    def run(source):
        done = subprocess.run(
            [sys.executable, "-c", PREAMBLE + source, str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return done.returncode, lines, done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_a_run_is_logged_killed_resumed_repaired_shared_and_shown_without_what_only_unix_has(
    tmp_path, elsewhere
):
    run = tmp_path / "run"
    code, (failures,), said = elsewhere(IS_KILLED)

    assert code == 9, said
    assert failures == {}, said
    assert list(run.glob("*.journal")), "without shared memory the journal is in the folder"

    code, found, said = elsewhere(RESUMES_AND_READS)

    assert code == 0, said
    failures, codes, shown = found
    assert failures == {}, said
    assert "151 records recovered" not in said
    records = whole_run(run, steps=range(151))
    assert not with_event(records, "lost")
    assert {record["session"] for record in records} == {1, 2}
    assert any(finding["kind"] == "nan" for finding in with_event(records, "finding"))
    assert not list(run.glob("*.journal"))
    assert not list(run.glob(".*")), "what could not be renamed would be left"
    assert codes.pop("doctor") == 1, "it found something"
    assert set(codes.values()) == {0}, (codes, said)
    assert (tmp_path / "shared.zip").stat().st_size > 1000
    for page, on_it in shown.items():
        assert not on_it["exceptions"], (page, on_it)
    assert "run" in shown["runs"]["text"]
    assert "150" in shown["overview"]["text"]
    assert "NaN" in shown["alerts"]["text"]
