"""Jobs of the real Hydra."""

from __future__ import annotations

import os

import pytest

from tests.fork_server import A_RUN, ROOT, run_python
from tests.lengths import in_make_faults
from tests.project.markdown import INTEGRATIONS, blocks
from tests.records import read_records
from toolkit.telemetry.runfolder.manifest import read_manifest

CONFIG = """
rate: 0.5
optimizer: {lr: "${rate}", steps: "???"}
hydra:
  callbacks:
    telemetry:
      _target_: toolkit.telemetry.integrations.hydra.TelemetryCallback
      tags: [mine]
      log_every: 1
      system: false
      code: false
"""
SCRIPT = """
import hydra
from toolkit.telemetry.integrations.hydra import job_log

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(config):
    job_log().log_step(1, train_loss=config.optimizer.lr)
    if config.optimizer.lr > 5:
        raise ValueError("too high")

main()
job_log().log_step(2, train_loss=0.0)
"""


@pytest.fixture
def train(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*overrides):
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        return run_python(
            ["train.py", *overrides], A_RUN, cwd=tmp_path, env=environ, capture_output=True, text=True
        )

    return run


def test_a_job_is_a_run_with_its_references_resolved_and_an_exception_ends_it(tmp_path, train):
    done = train("rate=7", "+password=hunter2", "hydra.job.chdir=true")

    assert "too high" in done.stderr
    (start,) = read_records(tmp_path / "logs/train/metrics.jsonl", "start")
    assert start["config"] == {"rate": 7, "optimizer": {"lr": 7, "steps": "???"}, "password": "***"}
    assert start["overrides"] == ["rate=7", "+password=***"]
    manifest = read_manifest(tmp_path / "logs/train")
    assert (manifest.project, list(manifest.tags)) == ("train", ["mine", "hydra"])
    assert manifest.sessions[-1].status == "failed"


@in_make_faults
def test_each_job_of_a_multirun_is_a_run_of_one_project(tmp_path, train):
    done = train("--multirun", "rate=1,2,7", "hydra.job.chdir=true")

    assert "too high" in done.stderr
    for name, rate, status in [
        ("train", 1, "finished"),
        ("train-2", 2, "finished"),
        ("train-3", 7, "failed"),
    ]:
        manifest = read_manifest(tmp_path / "logs" / name)
        assert (manifest.project, list(manifest.tags)) == ("train", ["mine", "hydra"])
        assert manifest.sessions[-1].status == status
        (start,) = read_records(tmp_path / "logs" / name / "metrics.jsonl", "start")
        assert start["config"]["optimizer"]["lr"] == rate
        assert start["overrides"] == [f"rate={rate}"]
        (step,) = read_records(tmp_path / "logs" / name / "metrics.jsonl", "step")
        assert step["train_loss"] == rate


@in_make_faults
def test_a_wrong_option_is_named_before_the_job_begins(tmp_path, train):
    done = train("+hydra.callbacks.telemetry.log_evry=1")

    assert done.returncode == 1
    assert "did you mean 'log_every'?" in done.stderr
    assert not (tmp_path / "logs").exists()


@in_make_faults
def test_the_script_of_the_page_runs(tmp_path, train):
    page = INTEGRATIONS / "sweeps.md"
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text(blocks(page, "yaml")[0].text)
    (tmp_path / "train.py").write_text(blocks(page, "py")[-1].text)
    done = train("--multirun", "optimizer.lr=1e-4,1e-3")

    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"train", "train-2"}
