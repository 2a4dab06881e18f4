"""Trainings of the benchmark, resumed rightly and wrongly, judged by the command."""

import json
import runpy
import sys

import pytest

from evaluations.resume_cases import case_of
from toolkit.telemetry.cli.main import main

resume_runs = pytest.importorskip("evaluations.resume_runs")


@pytest.fixture
def in_process(monkeypatch):
    """Run the sessions in this process, which is why the first ends instead of being killed."""

    def session(folder, settings, job, _):
        (folder / "settings.json").write_text(json.dumps(settings))
        ends = {"stop_at": job["kill_at"], "kill_at": -1} if job["kill_at"] > 0 else {}
        (folder / "job.json").write_text(json.dumps(job | ends))
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.syspath_prepend(str(folder))
            try:
                runpy.run_path("train.py", run_name="train")
            finally:
                sys.modules.pop("task", None)

    monkeypatch.setattr(resume_runs, "_session", session)


@pytest.mark.parametrize(
    ("kind", "answer", "cause", "code"),
    [
        ("exact", "same", "", 0),
        ("optimizer_lost", "different", "optimizer_lost", 1),
        ("data_from_start", "different", "data_from_start", 1),
    ],
)
@pytest.mark.usefixtures("in_process")
def test_a_resumed_training_is_judged(kind, answer, cause, code, tmp_path, capsys):
    case = case_of("plain", 0, 0, kind)
    resume_runs.make(case, tmp_path, b"some text, with easy parts: aaaaaaaaaaaa and others. " * 40)
    capsys.readouterr()

    assert main(["why", str(tmp_path / case.folder), "--json"]) == code

    (found,) = json.loads(capsys.readouterr().out)["resumes"]
    assert (found["answer"], found["cause"], found["step"]) == (answer, cause, case.saved_at)
