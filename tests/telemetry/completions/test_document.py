"""docs/completions.md: its Python is run, then its command, and the options that it shows are taken."""

from __future__ import annotations

import json
import os
import shlex

import yaml

from tests.fork_server import run_python
from tests.project.markdown import ROOT, blocks, commands
from toolkit.telemetry.logger.options import options_from_config

DOCUMENT = ROOT / "docs" / "completions.md"


def test_the_command_shows_what_the_lines_above_it_log(tmp_path):
    (script,) = blocks(DOCUMENT, "python")
    run_python(
        ["-c", script.text],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=100,
    )
    (command,) = commands(DOCUMENT)
    _, _, *arguments = shlex.split(command)
    shown = run_python(
        ["-m", "toolkit.telemetry.cli", "show", "--completions", *arguments, "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        timeout=100,
    )
    records = [json.loads(line) for line in shown.stdout.splitlines()]

    assert len(records) == 4, "all but the one that does not say it"
    assert {record["prompt"] for record in records} == {"What colour is the sky?"}
    assert (records[0]["rewards/facts"], records[0]["advantage"]) == (0.0, -0.7)
    assert (records[1]["chosen"], records[1]["rejected"], records[1]["reward_diff"]) == (
        "Blue.",
        "Green.",
        1.5,
    )
    assert (records[2]["log_odds_ratio"], records[3]["label"]) == (-0.3, False)


def test_the_options_are_those_that_count_where_none_are_given():
    (block,) = blocks(DOCUMENT, "yaml")
    shown = options_from_config(yaml.safe_load(block.text)).completion_options

    assert shown == options_from_config({"telemetry": {"enabled": True}}).completion_options
