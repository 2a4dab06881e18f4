from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

import pytest

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main


@pytest.fixture
def run(tmp_path):
    """The folder of a run of twenty steps, written by the real logger."""
    with TelemetryLogger("greyjacket", log_dir=tmp_path / "logs", log_every=1) as log:
        for step in range(1, 21):
            log.log_step(step, train_loss=1.0 / step, lr=1e-4)
        log.log_checkpoint(20, "model.safetensors")
    return tmp_path / "logs" / "greyjacket"


def test_the_last_steps_are_shown_with_the_way_to_open_them(run, capsys):
    capsys.readouterr()
    code = main(["show", str(run), "--rows", "3"])

    printed = capsys.readouterr().out
    assert code == 0
    assert f"{run}: finished, " in printed
    assert "20 step" in printed
    assert "1 checkpoint" in printed
    rows = [line.split() for line in printed.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["18", "19", "20"]
    assert f'read_run("{run.as_posix()}").frame()' in printed


def test_a_folder_of_runs_means_its_newest(run, capsys):
    with TelemetryLogger("older", log_dir=run.parent, log_every=1) as log:
        log.log_step(1, train_loss=1.0)
    os.utime(run.parent / "older" / "metrics.jsonl", (1, 1))
    capsys.readouterr()
    code = main(["show", str(run.parent)])

    assert code == 0
    assert capsys.readouterr().out.startswith(f"{run}: ")


def test_a_run_that_failed_is_failed_in_json(tmp_path, capsys):
    with suppress(ValueError), TelemetryLogger("r", log_dir=tmp_path, log_every=1, system=False) as log:
        log.log_step(1, train_loss=1.0)
        raise ValueError("out of data")
    capsys.readouterr()

    assert main(["show", str(tmp_path / "r"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["status"]["state"] == "failed"


def test_own_metrics_are_shown_without_pandas_numpy_or_the_table(run, capsys, monkeypatch):
    for name in ("pandas", "numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    with TelemetryLogger("greyjacket", log_dir=run.parent, log_every=1, resume=True) as log:
        log.log_eval(20, val_acc=0.75)
        log.log_step(21, train_loss=0.5, my_metric=3.5)
    (run / "metrics.csv").unlink()
    capsys.readouterr()

    assert main(["show", str(run)]) == 0
    printed = capsys.readouterr().out
    head = next(line.split() for line in printed.splitlines() if line.lstrip().startswith("step"))
    row = next(line.split() for line in printed.splitlines() if line.split()[:1] == ["21"])
    assert row[head.index("train_loss")] == "0.5"
    assert row[-1] == "3.5"
    assert head[-1] == "my_metric"
    assert "\nOther last values: val_acc=0.75\n" in printed


def test_what_the_trainer_measures_of_itself_is_not_among_the_steps(tmp_path, capsys):
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
        log.log_step(1, train_loss=0.5, **{f"profiling/part_{at}": 1.0 for at in range(20)})
    capsys.readouterr()

    assert main(["show", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "train_loss" in out
    assert "profiling/" not in out
