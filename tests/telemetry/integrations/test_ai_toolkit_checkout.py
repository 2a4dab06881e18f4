"""The hooks on the real ai-toolkit: a tiny Stable Diffusion with random weights, trained by its own run.py.

AI_TOOLKIT_CHECKOUT names a checkout, and AI_TOOLKIT_PYTHON a Python with its packages, if not this one.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.records import read_records
from toolkit.telemetry.integrations.ai_toolkit.attach import attach, attached_file, detach
from toolkit.telemetry.timing.history import read_run_time

CHECKOUT = os.environ.get("AI_TOOLKIT_CHECKOUT")
PYTHON = os.environ.get("AI_TOOLKIT_PYTHON", sys.executable)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not CHECKOUT, reason="AI_TOOLKIT_CHECKOUT does not name an ai-toolkit checkout"),
]


def call(*words, cwd=None):
    finished = subprocess.run(
        [PYTHON, *words],
        cwd=cwd,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    return finished.stdout


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ai_toolkit")
    call(Path(__file__).parent / "programs" / "make_tiny_model.py", str(folder))
    validated = {"image_path": str(folder / "0.png"), "prompt": "a plain square"}
    return {
        "job": "extension",
        "config": {
            "name": "tiny",
            "process": [
                {
                    "type": "sd_trainer",
                    "training_folder": str(folder / "output"),
                    "device": "cpu",
                    "telemetry": {"log_dir": str(folder / "logs"), "log_every": 1},
                    "network": {"type": "lora", "linear": 4, "linear_alpha": 4},
                    "save": {"dtype": "float32", "save_every": 3},
                    "datasets": [{"folder_path": str(folder), "resolution": [64], "num_workers": 0}],
                    "train": {
                        "batch_size": 2,
                        "steps": 6,
                        "train_unet": True,
                        "train_text_encoder": False,
                        "gradient_checkpointing": False,
                        "noise_scheduler": "ddpm",
                        "optimizer": "adamw",
                        "lr": 0.001,
                        "dtype": "float32",
                        "validation_config": {
                            "validate_every_n_steps": 4,
                            "resolution": 64,
                            "validation_items": [validated],
                        },
                    },
                    "model": {"name_or_path": str(folder / "model")},
                    "sample": {
                        "sampler": "ddpm",
                        "sample_every": 4,
                        "width": 64,
                        "height": 64,
                        "sample_steps": 2,
                        "neg": "",
                        "prompts": ["one"],
                    },
                    "logging": {"log_every": 1, "use_ui_logger": True},
                }
            ],
        },
    }


def test_the_real_trainer_is_recorded_and_resumed(job, tmp_path):
    checkout = Path(CHECKOUT)
    process = job["config"]["process"][0]
    config = tmp_path / "job.json"
    was_attached = attached_file(checkout)[1] is not None
    attach(checkout)
    try:
        config.write_text(json.dumps(job))
        call("run.py", str(config), cwd=checkout)
        process["train"]["steps"] = 8
        config.write_text(json.dumps(job))
        call("run.py", str(config), cwd=checkout)
    finally:
        if not was_attached:
            detach(checkout)

    run_folder = Path(process["telemetry"]["log_dir"]) / "tiny"
    root = Path(process["training_folder"]) / "tiny"
    records = read_records(run_folder / "metrics.jsonl")

    def of(event):
        return [record for record in records if record["event"] == event]

    with sqlite3.connect(root / "loss_log.db") as own:
        metrics = own.execute("SELECT step, key, value_real FROM metrics").fetchall()
    losses = {step: value for step, key, value in metrics if key == "loss/loss"}
    recorded = {record["global_step"]: record["train_loss"] for record in of("step")}
    assert list(recorded) == list(range(8))
    # Its own log leaves out the first step of each session.
    assert losses == {step: recorded[step] for step in losses}
    assert set(losses) == set(range(8)) - {0, 6}
    assert all(record["grad_norm"] > 0 for record in of("step"))
    assert {record["global_step"] for record in of("eval")} >= {0, 4}
    assert [Path(record["checkpoint_path"]).name for record in of("checkpoint")] == [
        "tiny_000000003.safetensors",
        "tiny.safetensors",
        "tiny.safetensors",
    ]
    assert all((run_folder / record["path"]).is_file() for record in of("sample"))
    assert {record["session"] for record in records} == {1, 2}
    assert of("start")[-1]["resumed_from_step"] == 6
    assert [(end["status"], end["telemetry_errors"]) for end in of("end")] == [("finished", 0)] * 2
    ledger = read_run_time(run_folder).ledger
    assert sum(line.seconds for line in ledger.lines) == pytest.approx(ledger.wall_s, rel=0.01)
