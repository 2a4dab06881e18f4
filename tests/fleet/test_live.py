"""A training knows nothing of the fleet, and alerts fire where they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet.engines import ROOT
from tests.lengths import in_make_faults
from tests.provision import NoTool, tool

RULES = ROOT / "config" / "prometheus" / "telemetry_rules.yml"


def test_training_imports_nothing_of_the_fleet():
    """Nor what sends messages, where there are no receivers."""
    code = (
        "import sys, tempfile; from toolkit.telemetry import TelemetryLogger\n"
        "with TelemetryLogger('run', log_dir=tempfile.mkdtemp()) as log:\n"
        "    log.log_start(); log.log_step(1, train_loss=1.0)\n"
        "ours = ('toolkit.telemetry.fleet', 'toolkit.telemetry.mirrors.messages.sink', 'http.client')\n"
        "print([name for name in sys.modules if name.startswith(ours)])"
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
