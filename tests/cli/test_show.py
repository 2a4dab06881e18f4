from __future__ import annotations

import os
import subprocess
import sys

import pytest

from toolkit.cli.main import main
from toolkit.telemetry import TelemetryLogger


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
    assert f'pd.read_csv("{run.as_posix()}/metrics.csv")' in printed


def test_a_folder_of_runs_means_its_newest(run, capsys):
    with TelemetryLogger("older", log_dir=run.parent, log_every=1) as log:
        log.log_step(1, train_loss=1.0)
    os.utime(run.parent / "older" / "metrics.jsonl", (1, 1))
    capsys.readouterr()
    code = main(["show", str(run.parent)])

    assert code == 0
    assert capsys.readouterr().out.startswith(f"{run}: ")


def test_a_folder_without_runs_is_reported(tmp_path, capsys):
    code = main(["show", str(tmp_path)])

    assert code == 2
    assert "no run found" in capsys.readouterr().err


def test_a_run_without_its_table_is_sent_to_repair(run, capsys):
    (run / "metrics.csv").unlink()
    code = main(["show", str(run)])

    assert code == 2
    assert f"telemetry repair {run}" in capsys.readouterr().err


def test_without_pandas_it_says_where_the_run_is_and_what_is_missing(run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    code = main(["show", str(run)])

    assert code == 2
    printed = capsys.readouterr().err
    assert str(run) in printed
    assert "pip install pandas" in printed


def test_a_reader_that_has_seen_enough_is_no_failure(run):
    command = f"{sys.executable} -m toolkit.cli.main show {run} --rows 20 | head -1; exit ${{PIPESTATUS[0]}}"
    finished = subprocess.run(["bash", "-c", command], capture_output=True, text=True)

    assert finished.returncode == 0
    assert "Traceback" not in finished.stderr


def test_a_number_of_rows_below_one_is_refused(run, capsys):
    with pytest.raises(SystemExit):
        main(["show", str(run), "--rows", "0"])

    assert "--rows: '0' is not a whole number from 1" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "no table", "other table", "nothing"])
def test_a_table_that_is_not_a_regular_file_is_neither_followed_nor_waited_for(run, capsys, tmp_path, kind):
    secret = tmp_path / "secret.csv"
    secret.write_text("event,train_loss\nwhat-must-stay-secret,1\n")
    csv = run / "metrics.csv"
    csv.unlink()
    if kind == "link":
        csv.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(csv)
    elif kind == "folder":
        csv.mkdir()
    else:
        csv.write_bytes({"no table": b'a,b\n"', "other table": b"a,b\n1,2\n", "nothing": b""}[kind])

    assert main(["show", str(run)]) == 2
    out, err = capsys.readouterr()
    assert "telemetry repair" in err
    assert "what-must-stay-secret" not in out + err
