"""Secrets planted wherever a training has them, looked for in every byte that a run and its mirrors leave behind."""

from __future__ import annotations

import base64
import importlib.util
import os
from pathlib import Path

import pytest

from tests.fork_server import run_python
from tests.lengths import is_long

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("programs")
HARMLESS = "harmless-marker-5150"


# W&B takes its time to start; what it learns by itself is looked at in tests/mirrors/exporters at every push.
@pytest.mark.parametrize("mirrors", ["files", "wandb"] if is_long() else ["files"])
def test_no_planted_secret_is_in_any_byte_of_a_run_or_its_mirrors(tmp_path, mirrors, record_property):
    if mirrors == "wandb" and importlib.util.find_spec("wandb") is None:
        pytest.skip("wandb is not installed")
    token = "ghp_" + "Zq8Lw2Kx5Jv9Tn3Rb7Ym1Cd4Fg6Hs0Pa1Qe"
    environ = {
        "HF_TOKEN": "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNm123456",
        "MY_SERVICE_PASSWORD": "tr0ub4dor-and-3-planted",
        "WANDB_API_KEY": "4f5e6d7c8b9a0f1e2d3c4b5a69788796a5b4c3d2",
    }
    options = [f"--token={token}", "--password", environ["MY_SERVICE_PASSWORD"]]
    done = run_python(
        [PROGRAMS / "log_planted_secrets.py", tmp_path / "logs", mirrors, *options],
        env={**os.environ, **environ, "GIT_TOKEN": token, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    files = [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    planted = {token, "k-4f6Jq0ZpX2vT9bLr", *environ.values()}
    shapes = {
        shape for one in planted for shape in (one, base64.b64encode(one.encode()).decode().rstrip("=")[4:-4])
    }
    leaks = [
        (path.name, shape)
        for path in files
        for data in [path.read_bytes()]
        for shape in shapes
        if shape.encode() in data or shape.encode() in path.name.encode()
    ]

    assert leaks == []
    assert not any(one in done.stdout + done.stderr for one in planted)
    assert "ALIVE False" in done.stdout, "the error keeps what the training held alive"
    holding = {path.name for path in files if HARMLESS.encode() in path.read_bytes()}
    assert {"metrics.jsonl", "metrics.csv", "one_logger.jsonl"} <= holding
    assert any("tfevents" in name for name in holding)
    record_property(
        "measured", f"{len(planted)} secrets planted, {len(files)} files of a run, {len(leaks)} found"
    )
