"""`telemetry why`: the answer, its evidence and its exit code; and the finding of the run itself."""

import json

import pytest

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.read_run import read_run


def _session(folder, steps, change=0.0, lr=0.1, **more):
    with TelemetryLogger("r", log_dir=folder, log_every=1, **more) as log:
        log.log_start(config={"lr": 0.1})
        for step in steps:
            noise = ((step * 7919) % 13 - 6) / 60
            log.log_step(step, train_loss=3.0 / (1 + step / 20) + noise + change, lr=lr)


def test_a_right_resume_is_the_same_training(tmp_path, capsys):
    _session(tmp_path, range(1, 21))
    _session(tmp_path, range(11, 26), resume=True)

    assert main(["why", str(tmp_path / "r")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "continued the same training as far as recorded, to the last digit" in printed
    assert not [record for record in read_run(tmp_path / "r").records if record["event"] == "finding"]


def test_a_wrong_resume_is_named_by_the_command_and_by_the_run_itself(tmp_path, capsys):
    _session(tmp_path, range(1, 21))
    _session(tmp_path, range(11, 26), change=0.3, lr=0.01, resume=True)
    capsys.readouterr()

    assert main(["why", str(tmp_path / "r"), "--json"]) == 1
    (answer,) = json.loads(capsys.readouterr().out)["resumes"]
    assert (answer["answer"], answer["cause"], answer["step"]) == ("different", "schedule_restarted", 10)
    assert {"what": "learning rate of step 11", "before": "0.1", "after": "0.01"}.items() <= next(
        row for row in answer["evidence"] if row["cause"]
    ).items()
    records = read_run(tmp_path / "r").records
    (finding,) = [record for record in records if record.get("kind") == "resume_mismatch"]
    assert finding["severity"] == "warning"
    assert "learning rate" in finding["message"]


def test_an_option_of_the_command_line_that_changed_is_the_cause(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--dropout", "0.1"])
    _session(tmp_path, range(1, 21))
    monkeypatch.setattr("sys.argv", ["train.py", "--dropout", "0.5", "--resume", "last.pt"])
    _session(tmp_path, range(11, 26), change=0.3, resume=True)

    assert main(["why", str(tmp_path / "r")]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "the code or the configuration changed (setting dropout: 0.1 before, 0.5 after)" in said


def test_what_cannot_be_said_has_an_exit_code_of_its_own(tmp_path, capsys):
    _session(tmp_path, range(1, 11))
    _session(tmp_path, range(11, 16), resume=True)

    assert main(["why", str(tmp_path / "r")]) == 3
    assert "cannot be said" in capsys.readouterr().out


@pytest.mark.parametrize(("asked", "first"), [("r", 11), ("r-2", 11), ("r-2", 21)])
def test_a_training_that_went_on_in_a_second_folder_is_judged_as_its_continuation(
    tmp_path, capsys, asked, first
):
    _session(tmp_path, range(1, 21))
    _session(tmp_path, range(first, 30), change=0.5)

    assert main(["why", str(tmp_path / asked)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert f"r-2 looks like the continuation of r from step {first - 1}" in said


@pytest.mark.parametrize("steps", [[], [1], range(1, 21)])
def test_a_run_without_a_resume_is_one_sentence_also_next_to_one_that_begins_again(tmp_path, capsys, steps):
    _session(tmp_path, steps)
    if len(steps) > 1:
        _session(tmp_path, range(1, 30))
    capsys.readouterr()

    assert main(["why", str(tmp_path / "r")]) == 0
    (said,) = capsys.readouterr().out.splitlines()
    assert len(steps) == 0 or "r was never resumed" in said


def test_a_torn_file_is_read_as_far_as_it_goes_and_nothing_is_said_in_a_sentence(tmp_path, capsys):
    _session(tmp_path, range(1, 21))
    _session(tmp_path, range(11, 26), resume=True)
    log = tmp_path / "r" / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-700] + b'\xff{"event":"st')

    assert main(["why", str(tmp_path / "r")]) in (0, 3)
    assert main(["why", str(tmp_path / "nothing")]) == 2
    assert "no run found" in capsys.readouterr().err
