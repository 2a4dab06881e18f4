"""What docs/errors.md shows happens."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

from tests.fork_server import run_python
from tests.project.markdown import ROOT, blocks, commands
from toolkit.telemetry.logger.options import TelemetryOptions

DOCUMENT = ROOT / "docs" / "errors.md"


def test_the_script_leaves_what_the_document_says_the_command_prints(tmp_path):
    (script,), (printed,) = blocks(DOCUMENT, "python"), blocks(DOCUMENT, "text")
    (command,) = commands(DOCUMENT)
    (tmp_path / "train.py").write_text(script.text)
    how = {
        "cwd": tmp_path,
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
        "capture_output": True,
        "text": True,
    }
    # Started, not forked: the frames of what forks it would be in the stack.
    trained = subprocess.run([sys.executable, "train.py"], timeout=200, **how)
    shown, as_json = (
        run_python(["-m", "toolkit.telemetry.cli", *shlex.split(command)[1:], *more], **how)
        for more in ([], ["--json"])
    )

    assert [(one.returncode, one.stderr) for one in (trained, shown, as_json)] == [(0, "")] * 3
    assert shown.stdout == printed.text
    (record,) = json.loads(as_json.stdout)
    assert (record["type"], record["count"], record["global_step"]) == ("OSError", 3, 0)


def test_the_options_are_on_as_it_says():
    options = TelemetryOptions().error_options

    assert (options.signals, options.exit_code) == (True, True)
    assert options.output_lines == 20
    assert (options.hang, options.hang_after) == (True, 60)
