"""`telemetry ship` next to a live run: it follows, shows last values, ends when asked, and the run never knows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet.engines import ROOT
from tests.fleet.shipped_runs import engine_bytes, id_of, newest_or_nothing, record_bytes
from tests.lengths import in_make_faults
from tests.provision import NoTool, tool
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger

RULES = ROOT / "config" / "prometheus" / "telemetry_rules.yml"


@pytest.fixture
def shipper(engine, logs):
    """The command in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "toolkit.telemetry.cli", "ship", str(logs), "--to", str(engine.address())],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


@in_make_faults
def test_a_live_run_is_followed(ask, logs, shipper):
    process = shipper
    with TelemetryLogger("live", log_dir=logs, log_every=1, flush_interval=0.05, project="p") as log:
        log.log_start()
        for step in range(20):
            log.log_step(step, train_loss=0.5 if step < 19 else float("nan"))
        log.flush()
        run_id = id_of(log.run_folder)
        status = f"SELECT argMax(status, version) FROM runs WHERE run_id = '{run_id}'"
        wait_until(lambda: ask.query(status) == b"running\n", process)
    expected = record_bytes(log.run_folder)["metrics.jsonl"]
    wait_until(lambda: newest_or_nothing(ask, run_id) == expected, process)
    wait_until(lambda: ask.query(status) == b"finished\n", process)
    process.terminate()
    out, err = process.communicate(timeout=60)

    assert process.returncode == 0
    assert engine_bytes(ask, run_id) == {(0, 1): expected}
    assert err.count("\n") == 1
    assert f"shipping {logs} to clickhouse://default@" in err
    assert out == ""


def test_training_imports_nothing_of_the_fleet():
    code = (
        "import sys, tempfile; from toolkit.telemetry import TelemetryLogger\n"
        "with TelemetryLogger('run', log_dir=tempfile.mkdtemp()) as log:\n"
        "    log.log_start(); log.log_step(1, train_loss=1.0)\n"
        "print([name for name in sys.modules if name.startswith('toolkit.telemetry.fleet') or name == 'http.client'])"
    )

    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert found.stdout.splitlines()[-1] == "[]"


@in_make_faults
def test_the_alerts_fire_where_they_should_and_nowhere_else(tmp_path):
    try:
        promtool = tool("promtool", "prometheus")
    except NoTool as error:
        pytest.skip(str(error))
    text = Path(__file__).with_name("telemetry_rules_test.yml").read_text().replace("RULES", str(RULES))
    (tmp_path / "rules_test.yml").write_text(text)

    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "rules_test.yml"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr
