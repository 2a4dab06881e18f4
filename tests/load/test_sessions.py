"""Tabs that are opened and closed all day: the server lets go of what they had."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("websockets")

import psutil

from tests.dashboard.serving import dashboard
from tests.lengths import in_make_faults, longer
from tests.load.tabs import come_and_go, settled, soak
from tests.made_runs import append, step_record, write_run
from toolkit.telemetry.runfolder.manifest import Heartbeat, read_manifest, write_manifest

_FILES_OF_A_CLOSED_TAB = 3
"""Streamlit keeps a closed tab for two minutes, should it come back: an event loop, which is three descriptors."""
_KEPT_AT_MOST = 128

ROUNDS = longer(2, 8)
TABS = longer(2, 24)


@in_make_faults
@pytest.mark.slow
@pytest.mark.timeout(longer(240, 2400))
def test_tabs_that_open_and_close_leave_no_threads_files_or_memory_behind(tmp_path, record_property):
    run = write_run(tmp_path / "logs", "live", sessions=[range(longer(2_000, 50_000))], status="running")

    def log(count):
        last = read_manifest(run).heartbeat.global_step + count
        append(run, [step_record(step, train_loss=1.0 / step) for step in range(last - count + 1, last + 1)])
        beat = Heartbeat(time=time.time(), seq=last, global_step=last)
        write_manifest(run, replace(read_manifest(run), heartbeat=beat))

    with dashboard(tmp_path, "--log-dir", str(tmp_path / "logs")) as server:
        server.wait_until_ready()
        url = f"http://localhost:{server.port}"
        points = soak(url, server.process.pid, run.name, rounds=ROUNDS, tabs=TABS, log=log)
        first = points[0]
        kept = min(TABS * ROUNDS, _KEPT_AT_MOST)
        most_files = first["files"] + _FILES_OF_A_CLOSED_TAB * kept + 2
        # A thread may still be about to end.
        last = settled(psutil.Process(server.process.pid), threads=first["threads"], files=most_files)
        record_property(
            "measured",
            f"{TABS * (ROUNDS + 1)} tabs opened and closed, {sum(p.get('messages', 0) for p in points):,.0f} "
            f"messages: {last['threads'] - first['threads']:+.0f} threads, "
            f"{last['rss_mb'] - first['rss_mb']:+.1f} MB",
        )
        assert last["threads"] <= first["threads"]
        assert last["files"] <= most_files
        assert last["rss_mb"] - first["rss_mb"] < 30 + 2.0 * kept
        if longer(0, 1):
            _wait_until_they_are_forgotten(url, server.process.pid, first)


def _wait_until_they_are_forgotten(url, pid, first):
    time.sleep(130)
    # Expired tabs are let go when the next one comes.
    come_and_go(url, 2, [("", "")])
    held = settled(psutil.Process(pid), threads=first["threads"], files=first["files"])
    assert held["files"] <= first["files"]
    assert held["threads"] <= first["threads"]
