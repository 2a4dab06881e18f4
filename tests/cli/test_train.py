"""`telemetry train` is run.py; tests/trainer trains with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project.markdown import ROOT
from toolkit.telemetry.cli.commands.setup import train
from toolkit.telemetry.cli.main import main


def test_an_invalid_configuration_is_refused_under_its_own_name(tmp_path, capsys):
    config = tmp_path / "job.yaml"
    config.write_text("job: extension\nconfig:\n  name: x\n  process:\n  - type: no_such_trainer\n")

    assert main(["train", str(config)]) == 2
    assert capsys.readouterr().err.startswith(f"telemetry train: {config}: config.process[0].type")


def test_without_a_configuration_the_example_is_trained(capsys, monkeypatch, tmp_path):
    trained = []
    monkeypatch.setattr(train, "train", lambda args, prog: trained.append((args.config, args.steps)) or 0)

    assert main(["train", "--steps", "2"]) == 0
    [(configs, steps)] = trained
    assert [path.name for path in configs] == ["train_lora_tiny_cpu_with_telemetry.yaml"]
    assert steps == 2
    monkeypatch.setattr(train, "_examples", list)
    assert main(["train"]) == 2
    assert "name a configuration file" in capsys.readouterr().err


def test_the_examples_are_copied_and_never_over_a_file(tmp_path, capsys):
    assert main(["train", "--copy-examples", str(tmp_path / "mine")]) == 0
    copied = capsys.readouterr().out.splitlines()
    assert copied == [str(path) for path in sorted((tmp_path / "mine").iterdir())]
    for path in copied:
        original = ROOT / "config" / "examples" / Path(path).name
        assert Path(path).read_bytes() == original.read_bytes()

    Path(copied[0]).write_text("changed")
    assert main(["train", "--copy-examples", str(tmp_path / "mine")]) == 2
    assert "File exists" in capsys.readouterr().err
    assert Path(copied[0]).read_text() == "changed"


def test_options_of_the_embedded_trainer_are_refused_for_ai_toolkit(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "job.yaml", "--ai-toolkit", str(tmp_path), "--steps", "2"])
    assert ended.value.code == 2
    assert "are for the embedded trainer" in capsys.readouterr().err


def test_a_configuration_must_be_given_to_run_py():
    from toolkit.telemetry.trainer.command import main as run_py

    with pytest.raises(SystemExit):
        run_py([])


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")]
)
def test_an_error_of_the_training_is_not_taken_for_one_of_the_command(error, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(train, "train", fail)
    with pytest.raises(type(error)):
        main(["train"])
