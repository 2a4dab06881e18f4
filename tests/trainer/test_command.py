"""What the arguments of run.py train; nothing is trained here."""

from __future__ import annotations

import runpy
import sys

import pytest

from tests.project.markdown import ROOT
from toolkit.telemetry.trainer import command


@pytest.fixture
def trained(monkeypatch):
    """What would be trained is listed here."""
    configs = []
    monkeypatch.setattr(
        command, "_train", lambda path, args, began: configs.append((path.name, args.steps)) or 0
    )
    return configs


def test_without_a_configuration_the_example_is_trained(trained):
    assert command.main(["--steps", "2"]) == 0
    assert trained == [("train_lora_tiny_cpu_with_telemetry.yaml", 2)]


def test_run_py_trains_each_configuration_in_turn(trained, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "a.yaml", "b.yaml"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "run.py"), run_name="__main__")

    assert ended.value.code == 0
    assert trained == [("a.yaml", None), ("b.yaml", None)]
