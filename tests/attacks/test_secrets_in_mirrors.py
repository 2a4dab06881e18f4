"""Secrets planted wherever a training has them, looked for in every byte that a run and its mirrors leave behind."""

from __future__ import annotations

import base64
import importlib.util
import os
import textwrap
from pathlib import Path

import pytest

from tests.fork_server import run_python
from tests.lengths import is_long

ROOT = Path(__file__).parents[2]
HARMLESS = "harmless-marker-5150"

TRAIN = """
    import gc, os, sys, weakref
    from toolkit.telemetry import TelemetryLogger

    TOKEN = os.environ["GIT_TOKEN"]

    class Tensor:
        "Stands for what holds a GPU's memory."

    def train(log, seen):
        password = os.environ["MY_SERVICE_PASSWORD"]
        tensor = Tensor()
        seen.append(weakref.ref(tensor))
        raise ValueError(f"HARMLESS: cannot reach https://user:{password}@host.example/ with {TOKEN} by {password}")

    log = TelemetryLogger(
        "r", log_dir=sys.argv[1], system=False, log_every=1, tensorboard=True, one_logger_file=True,
        **({"wandb": True} if sys.argv[2] == "wandb" else {}),
    )
    log.log_start(config={
        "name": "HARMLESS", "hf_token": os.environ["HF_TOKEN"], "api": {"key": "k-4f6Jq0ZpX2vT9bLr"},
        "url": f"https://me:{os.environ['MY_SERVICE_PASSWORD']}@db.example/x", "args": [TOKEN], TOKEN: 1,
        "note": f"bearer {os.environ['HF_TOKEN']}",
    })
    for step in range(3):
        log.log_step(step, train_loss=1.0, note=f"HARMLESS {TOKEN}")
    with log.span("HARMLESS", attributes={"header": f"Authorization: Bearer {TOKEN}"}):
        pass
    log.log_completion(1, prompt=f"HARMLESS {TOKEN}", completion=os.environ["MY_SERVICE_PASSWORD"])
    log.log_event("custom", text=f"HARMLESS {os.environ['WANDB_API_KEY']}", argv=sys.argv)
    seen = []
    try:
        with log.capture_errors():
            train(log, seen)
    except ValueError:
        pass
    gc.collect()
    print("ALIVE", seen[0]() is not None)
    log.close()
"""


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
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN).replace("HARMLESS", HARMLESS))
    options = [f"--token={token}", "--password", environ["MY_SERVICE_PASSWORD"]]
    done = run_python(
        [script, tmp_path / "logs", mirrors, *options],
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
