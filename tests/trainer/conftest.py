"""A configuration small enough to train in a test, and ways to train it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from tests.records import read_records
from toolkit.telemetry.trainer import loop
from toolkit.telemetry.trainer.command import main

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "config" / "examples" / "train_lora_tiny_cpu_with_telemetry.yaml"


@pytest.fixture
def mapping():
    """The shipped example, shrunk; a test changes what it is about."""
    content = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    process = content["config"]["process"][0]
    process["device"] = "cpu"
    process["network"]["linear"] = 4
    process["train"].update(num_images=8, batch_size=2, steps=4, warmup=2, validate_every=2, save_every=2)
    process["sample"].update(sample_every=4, prompts=["[trigger] a red circle", "a blue star, flat"])
    # A machine that pauses for seconds still gets everything into the files before the end.
    process["telemetry"].update(log_every=1, system=False, close_timeout=60.0)
    return content


@pytest.fixture
def process(mapping):
    return mapping["config"]["process"][0]


@pytest.fixture
def write(tmp_path, mapping):
    """Write the configuration as it is now, and return its path."""

    def write_config(name="config.yaml"):
        path = tmp_path / name
        path.write_text(yaml.safe_dump(mapping), encoding="utf-8")
        return path

    return write_config


@pytest.fixture
def train(tmp_path, monkeypatch, write):
    """Train the configuration as it is now, in this process and in `tmp_path`; return the exit code."""
    # Other tests of this process compute as torch does by itself.
    monkeypatch.setattr(loop, "_be_deterministic", lambda: None)
    monkeypatch.setattr(loop, "_SAMPLE_STEPS", 1)
    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    yield lambda *flags: main([str(write()), *flags])
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture
def run_folder(tmp_path):
    return tmp_path / "logs" / "tiny_neon_lora"


@pytest.fixture
def records(run_folder):
    """Read the records of one kind, or of every kind, of this run or of another folder."""
    return lambda event, folder=run_folder: read_records(folder / "metrics.jsonl", event, live=True)
