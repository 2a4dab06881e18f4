"""`make fleet`: an engine, two nodes, their runs and the pages start with one command and end with one signal."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.fleet.engines import free_ports
from tests.lengths import in_make_faults
from tests.project.markdown import ROOT
from tests.waiting import wait_until
from toolkit.telemetry.fleet.address import address_of
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.runfolder.manifest import read_manifest

RUNS = 20


def test_the_runs_of_the_demo_are_written_by_the_real_logger(tmp_path):
    subprocess.run([sys.executable, "-m", "benchmarks.fleet_runs", tmp_path, "38", "2"], cwd=ROOT, check=True)

    statuses = {path.name: read_manifest(path).latest.status for path in tmp_path.iterdir()}
    assert statuses == {"sweep-00038": "finished", "sweep-00039": "failed"}


@in_make_faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_fleet_starts_shows_its_runs_and_ends_without_a_trace(tmp_path, number):
    (port,) = free_ports(1)
    output = tmp_path / "out"
    with output.open("wb") as out:
        demo = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fleet_demo", "--runs", str(RUNS), "--port", str(port)],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: f"{RUNS} runs are in the engine" in output.read_text(), demo)
        shown = output.read_text()
        assert f"Dashboard: http://localhost:{port} " in shown
        assert f"To stop: kill {demo.pid}" in shown
        address = re.search(r"engine +(clickhouse://\S+)", shown)[1]
        engine = Engine(address_of(address))
        wait_until(lambda: engine.rows("SELECT uniqExact(run_id) FROM runs") == [(RUNS + 1,)], demo)
        nodes = engine.rows("SELECT node, uniqExact(run_id) FROM runs GROUP BY node ORDER BY node")
        assert nodes == [("node-1", RUNS // 2 + 1), ("node-2", RUNS // 2)]
        status = "SELECT argMax(status, version) FROM runs WHERE name = 'tiny_neon_lora'"
        wait_until(lambda: engine.query(status) == b"running\n", demo)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
            assert answer.status == 200
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) >= 4
        printed = [shlex.split(line) for line in output.read_text().splitlines() if "bin/telemetry " in line]
        assert len(printed) == 3
        for command in printed:
            subprocess.run(command, cwd=tmp_path, check=True)

        demo.send_signal(number)
        code = demo.wait(120)
    finally:
        demo.kill()
        demo.wait()

    assert code == 0, output.read_text()
    assert not any(child.is_running() for child in children)
    assert [path.name for path in Path(tmp_path).iterdir()] == ["out"]
