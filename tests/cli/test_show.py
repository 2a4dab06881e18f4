from __future__ import annotations

import json
import sys

import pytest

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.labels import Labels, write_labels


@pytest.fixture
def run(tmp_path):
    """The folder of a run of twenty steps, written by the real logger."""
    with TelemetryLogger("greyjacket", log_dir=tmp_path / "logs", log_every=1) as log:
        for step in range(1, 21):
            log.log_step(step, train_loss=1.0 / step, lr=1e-4)
        log.log_checkpoint(20, "model.safetensors")
    return tmp_path / "logs" / "greyjacket"


def test_the_series_are_shown_with_the_way_to_open_them(run, capsys):
    capsys.readouterr()
    code = main(["show", str(run)])

    printed = capsys.readouterr().out
    assert code == 0
    assert printed.startswith("greyjacket: telemetry, finished, ")
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line[:1].isalpha()}
    assert rows["train_loss"] == ["20", "1..20", "1", "0.05", "0.05", "1"]
    assert f'read_run("{run.as_posix()}").frame()' in printed
    assert main(["show", str(run), "--rows", "3"]) == 2


def test_a_folder_of_runs_means_its_newest(run, capsys):
    with TelemetryLogger("newer", log_dir=run.parent, log_every=1) as log:
        log.log_step(1, train_loss=1.0)
    capsys.readouterr()
    code = main(["show", str(run.parent)])

    assert code == 0
    assert capsys.readouterr().out.startswith("newer: ")


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
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line[:1].isalpha()}
    assert rows["train_loss"][3] == "0.5"
    assert rows["my_metric"] == ["1", "21..21", "3.5", "3.5", "3.5", "3.5"]
    assert rows["val_acc"][3] == "0.75"


def test_what_the_trainer_measures_of_itself_is_shown_only_if_it_is_asked_for(tmp_path, capsys):
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
        log.log_step(1, train_loss=0.5, **{f"profiling/part_{at}": 1.0 for at in range(20)})
    capsys.readouterr()

    assert main(["show", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "train_loss" in out
    assert "profiling/" not in out
    assert "20 of the machine, of time and of folded steps" in out

    assert main(["show", str(tmp_path / "run"), "--metrics", "profiling/*"]) == 0
    assert "profiling/part_19" in capsys.readouterr().out


def test_a_run_has_the_name_that_the_list_gives_it(run, capsys):
    write_labels(run, Labels(display_name="the good one"))
    found = {}
    for command in ("ls", "show", "doctor"):
        capsys.readouterr()
        main([command, str(run), "--json"])
        found[command] = json.loads(capsys.readouterr().out)

    assert found["ls"]["runs"][0]["name"] == "the good one"
    assert found["show"]["runs"][0]["name"] == "the good one"
    assert found["doctor"]["run"] == "the good one"
