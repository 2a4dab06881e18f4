"""Tabs that are opened and closed all day: the server lets go of what they had."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("websockets")

import psutil

from tests.attacks.http_client import Visitor
from tests.dashboard.serving import dashboard
from tests.lengths import in_make_faults, longer
from tests.load.long_run import held_by
from tests.made_runs import append, step_record, write_run
from toolkit.telemetry.runfolder.manifest import Heartbeat, read_manifest, write_manifest

_FILES_OF_A_CLOSED_TAB = 3
"""Streamlit keeps a closed tab for two minutes, should it come back: an event loop, which is three descriptors."""
_KEPT_AT_MOST = 128

ROUNDS = longer(2, 8)
TABS = longer(2, 24)


def come_and_go(port: int, tabs: int, pages: list[tuple[str, str]], *, at_once: int = 4) -> int:
    """Open `tabs` tabs, a few at a time, draw all `pages` in each, and close them; count the messages."""
    messages = 0
    for first in range(0, tabs, at_once):
        with ExitStack() as stack:
            opened = [stack.enter_context(Visitor(port).tab()) for _ in range(min(at_once, tabs - first))]
            messages += sum(len(tab.open(page, query).messages) for page, query in pages for tab in opened)
    return messages


def settled(process: psutil.Process, *, threads: float = 0.0, files: float = 0.0) -> dict[str, float]:
    """Return the server's resources once threads and descriptors are down to these, or after a timeout."""
    deadline = time.monotonic() + 10.0
    while True:
        held = held_by(process)
        if time.monotonic() > deadline or (held["threads"] <= threads and held["files"] <= files):
            return held
        time.sleep(0.25)


def soak(
    port: int, pid: int, run: str, *, rounds: int, tabs: int, log: Callable[[int], object]
) -> list[dict[str, float]]:
    """Open and close tabs in `rounds`; return the server's resources after each, the first being the warm-up.

    Before each round, `log` writes this many further steps.
    """
    process = psutil.Process(pid)
    pages = [("", ""), ("overview", f"run={run}"), ("metrics", f"run={run}"), ("alerts", f"run={run}")]
    come_and_go(port, tabs, pages)
    time.sleep(2.0)
    points = [held_by(process)]
    for _ in range(rounds):
        log(100)
        messages = come_and_go(port, tabs, pages)
        held = settled(process, threads=points[0]["threads"], files=points[0]["files"])
        points.append({"messages": float(messages), **held})
    return points


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
        points = soak(server.port, server.process.pid, run.name, rounds=ROUNDS, tabs=TABS, log=log)
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
            _wait_until_they_are_forgotten(server.port, server.process.pid, first)


def _wait_until_they_are_forgotten(port, pid, first):
    time.sleep(130)
    # Expired tabs are let go when the next one comes.
    come_and_go(port, 2, [("", "")])
    held = settled(psutil.Process(pid), threads=first["threads"], files=first["files"])
    assert held["files"] <= first["files"]
    assert held["threads"] <= first["threads"]
