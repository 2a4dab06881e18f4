"""`telemetry train` is run.py; tests/trainer trains with it."""

from __future__ import annotations

import runpy
import sys

import pytest

from tests.project.markdown import ROOT
from toolkit.telemetry.cli.commands.setup import train
from toolkit.telemetry.cli.main import main


@pytest.fixture
def trained(monkeypatch):
    """Nothing is trained; what would be is listed here."""
    configs = []
    monkeypatch.setattr(
        train, "_train", lambda path, args, began: configs.append((path.name, args.steps)) or 0
    )
    return configs


def test_without_a_configuration_the_example_is_trained(trained):
    assert main(["train", "--steps", "2"]) == 0
    assert trained == [("train_lora_tiny_cpu_with_telemetry.yaml", 2)]


def test_run_py_is_the_same_command(trained, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "a.yaml", "b.yaml"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "run.py"), run_name="__main__")

    assert ended.value.code == 0
    assert trained == [("a.yaml", None), ("b.yaml", None)]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")]
)
def test_an_error_of_the_training_is_not_taken_for_one_of_the_command(error, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(train, "_train", fail)
    with pytest.raises(type(error)):
        main(["train"])
