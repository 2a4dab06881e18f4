"""An experiment with the real Ray Tune, where it is installed; the locked environment has none."""

from __future__ import annotations

import pytest

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S
from toolkit.telemetry.runfolder.manifest import read_manifest

try:
    import ray
    from ray import tune
except ImportError:
    pytest.skip('Ray is not installed: pip install "ray[tune]"', allow_module_level=True)


def train(config):
    for step in range(1, 4):
        if config["lr"] == 0.5 and step == 3:
            raise ValueError("diverged")
        tune.report({"loss": config["lr"] / step, "val_loss": config["lr"]})


def test_each_trial_is_a_run_and_an_exception_ends_its_own(tmp_path):
    from toolkit.telemetry.integrations.ray_tune import TelemetryCallback

    telemetry = TelemetryCallback(
        log_dir=tmp_path / "logs", system=False, csv=False, close_timeout=PATIENCE_S
    )
    results = tune.Tuner(
        train,
        param_space={"lr": tune.grid_search([0.25, 0.5])},
        run_config=tune.RunConfig(name="rates", storage_path=str(tmp_path / "ray"), callbacks=[telemetry]),
    ).fit()
    ray.shutdown()

    assert len(results.errors) == 1
    good, bad = sorted((tmp_path / "logs").iterdir())
    for folder, rate, status in [(good, 0.25, "finished"), (bad, 0.5, "failed")]:
        manifest = read_manifest(folder)
        assert (manifest.project, list(manifest.tags)) == ("rates", ["ray"])
        assert manifest.sessions[-1].status == status
        (start,) = read_records(folder / "metrics.jsonl", "start")
        assert start["config"] == {"lr": rate}
        steps = read_records(folder / "metrics.jsonl", "step")
        assert [step["train_loss"] for step in steps] == [rate, rate / 2, rate / 3][: len(steps)]
        assert len(steps) == (3 if status == "finished" else 2)
        evaluations = read_records(folder / "metrics.jsonl", "eval")
        assert [each["val_loss"] for each in evaluations] == [rate] * len(steps)
    (error,) = read_records(bad / "metrics.jsonl", "error")
    assert error["message"] == "ValueError: diverged"
