from __future__ import annotations

import json
import math
import os
from functools import partial

import pytest

from tests.cli.runs import write_run, write_table
from tests.reports.report_parts import Page
from toolkit.telemetry.cli.main import main


@pytest.fixture
def report(telemetry):
    return partial(telemetry, "report")


def test_one_run_is_printed_as_markdown_with_the_verdict_first(report, tmp_path):
    losses = [1 / step for step in range(1, 81)]
    losses[40] = math.nan
    write_run(tmp_path, "a_b|c", losses)

    code, printed, _ = report(next(tmp_path.iterdir()))

    assert code == 0
    title, verdict = printed.split("\n\n")[:2]
    assert title == r"### a_b\|c"
    assert verdict.startswith("**Finished at step 80. 1 critical")
    assert "| train_loss | 0.0125 | 0.0125 at step 80 | 0.0125 | 1 | 80 | 1 |" in printed
    assert "![" not in printed


def test_several_runs_are_compared_and_the_best_is_marked(report, tmp_path):
    first = write_run(tmp_path, "first", [1.0, 0.5], config={"lr": 1e-4})
    second = write_run(tmp_path, "second", [1.0, 0.25], config={"lr": 2e-4})

    code, printed, _ = report(first, second, "--html", tmp_path / "c.html", "--markdown", "-")
    page = Page((tmp_path / "c.html").read_text("utf-8"))

    assert code == 0
    # A reward or an accuracy is compared before a training loss.
    assert "**Best by accuracy: second, 0.75 at step 2. Next, first is 33 % lower (0.5).**" in printed
    assert "| learning_rate | 1e-4 | 2e-4 |" in printed
    assert "**0.25** ★" in printed
    assert {(curve["run"], curve["metric"]) for curve in page.data["curves"]} == {
        (run, metric) for run in ("first", "second") for metric in ("train_loss", "accuracy")
    } | {(run, "sec_per_step") for run in ("first", "second")}


def test_the_runs_of_a_folder_are_a_sweep(report, tmp_path):
    pytest.importorskip("numpy")
    for number in range(3):
        write_run(tmp_path, f"run-{number}", [1.0, 0.5 + 0.1 * number], config={"lr": 1e-4 * (1 + number)})

    code, printed, _ = report(
        tmp_path, "--html", tmp_path / "s.html", "--markdown", "-", "--metric", "train_loss"
    )
    page = Page((tmp_path / "s.html").read_text("utf-8"))

    assert code == 0
    assert "**Best of 3 runs: run-0, with train_loss 0.5.**" in printed
    assert "| run-1 | 0.6 | 2e-4 | finished |" in printed
    assert page.html.count('class="dot ') == 3
    assert page.data["tables"][0]["rows"][0] == ["run-0", "0.5", "1e-4", "finished"]


def test_another_tools_run_has_a_report_too(report, tmp_path):
    path = write_table(tmp_path / "run" / "log.csv", [1.0, 0.5, 0.25])

    code, printed, _ = report(path)

    assert code == 0
    assert "logged by" in printed
    assert "| train/loss | 0.25 |" in printed


def test_a_run_without_run_json_ended_as_its_records_say(report, tmp_path):
    folder = write_run(tmp_path, "run", [1.0, 0.5])
    (folder / "run.json").unlink()

    code, printed, _ = report(folder)

    assert code == 0
    assert printed.split("\n\n")[1].startswith("**Finished at step 2.")
    assert printed.split("\n\n")[2].startswith("finished · step 2")


def test_json_says_what_was_written(report, tmp_path):
    folder = write_run(tmp_path / "logs", "run", [1.0, 0.5])

    code, printed, _ = report(folder, "--html", tmp_path / "r.html", "--json")

    found = json.loads(printed)
    assert code == 0
    assert found["view"] == "overview"
    assert found["runs"] == ["run"]
    assert found["html"] == str(tmp_path / "r.html")
    assert found["markdown"] is None


def test_a_missing_run_and_a_file_that_cannot_be_written_are_named(capsys, tmp_path):
    folder = write_run(tmp_path / "logs", "run", [1.0, 0.5])

    assert main(["report", str(tmp_path / "none"), "--html", str(tmp_path / "r.html")]) == 2
    assert "none" in capsys.readouterr().err
    for target in (tmp_path / "no" / "such" / "r.html", tmp_path):
        assert main(["report", str(folder), "--html", str(target)]) == 2
        assert f"cannot write {target}" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["logs"]
