"""Studies with the real Optuna."""

from __future__ import annotations

import contextlib
import gc
import pickle
import weakref

import pytest

from tests.lazy_module import LazyModule
from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S
from tests.waiting import wait_until
from toolkit.telemetry.runfolder.manifest import read_manifest

optuna = LazyModule("optuna")
ours = LazyModule("toolkit.telemetry.integrations.optuna")

QUIET = {"system": False, "csv": False, "code": False, "quiet": True, "close_timeout": PATIENCE_S}


class Diverged(Exception):
    pass


def objective(trial):
    """Report three values; the second trial is pruned, the third and the fifth fail."""
    rate = trial.suggest_float("lr", 0.0, 1.0)
    for step in range(1, 4):
        trial.report(rate / step, step)
        if trial.number == 1:
            raise optuna.TrialPruned
    if trial.number == 2:
        raise Diverged
    return float("nan") if trial.number == 4 else rate


def test_each_trial_is_a_run_of_the_study(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path, tags=["mine"], **QUIET)
    study = optuna.create_study(study_name="rates")
    study.optimize(telemetry.live(objective), n_trials=5, catch=Diverged)
    trials = study.trials

    folders = [tmp_path / f"trial-{number}" for number in range(5)]
    assert sorted(tmp_path.iterdir()) == folders
    for trial, folder in zip(trials, folders, strict=True):
        manifest = read_manifest(folder)
        assert (manifest.project, list(manifest.tags)) == ("rates", ["mine", "optuna", "rates"])
        (start,) = read_records(folder / "metrics.jsonl", "start")
        assert start["config"] == trial.params
        assert (start["study"], start["trial"]) == ("rates", trial.number)
        values = [
            (each["global_step"], each["value"]) for each in read_records(folder / "metrics.jsonl", "eval")
        ]
        assert values[:3] == [*trial.intermediate_values.items()]
        assert [value for value in values[3:] if value[1] is not None] == (
            [(3, trial.value)] if trial.state.name == "COMPLETE" else []
        )
    ends = [read_records(folder / "metrics.jsonl", "end")[0] for folder in folders]
    assert [end["status"] for end in ends] == ["finished", "stopped", "failed", "finished", "failed"]
    assert ends[1]["reason"] == "pruned"


def test_trials_of_two_threads_log_into_their_own_runs_with_the_studys_names(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path, log_every=1, **QUIET)
    study = optuna.create_study(directions=["minimize", "maximize"])
    study.set_metric_names(["val_loss", "accuracy"])

    @telemetry.live
    def two_values(trial):
        rate = trial.suggest_float("lr", 0.0, 1.0)
        telemetry.log.log_step(1, train_loss=rate)
        return rate, 1.0 - rate

    study.optimize(two_values, n_trials=4, n_jobs=2)
    telemetry.log.log_step(2, train_loss=0.0)

    for trial in study.trials:
        file = tmp_path / f"trial-{trial.number}" / "metrics.jsonl"
        assert [step["train_loss"] for step in read_records(file, "step")] == [trial.params["lr"]]
        assert [start["config"] for start in read_records(file, "start")] == [trial.params]
        (values,) = read_records(file, "eval")
        assert [values["val_loss"], values["accuracy"]] == trial.values


def test_what_is_no_trial_of_a_study_is_not_recorded_and_a_study_in_a_trial_has_its_own_runs(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path, log_every=1, **QUIET)
    copied = pickle.loads(pickle.dumps(telemetry))
    inner = optuna.create_study(study_name="inner")

    @telemetry.live
    def outer(trial):
        inner.optimize(copied.live(objective), n_trials=1)
        inner.optimize(telemetry.live(lambda inner_trial: inner_trial.number), n_trials=1)
        telemetry.log.log_step(1, train_loss=0.5)
        return 0.5

    study = optuna.create_study(study_name="outer")
    study.optimize(outer, n_trials=1)
    again = [telemetry.live(lambda trial: trial and 0.5)(trial) for trial in (study.best_trial, None)]
    fixed = telemetry.live(objective)(optuna.trial.FixedTrial({"lr": 0.25}))

    assert [*again, fixed] == [0.5, None, 0.25]
    found = {folder: read_manifest(folder).project for folder in tmp_path.iterdir()}
    assert sorted(found.values()) == ["inner", "inner", "outer"]
    steps = {found[folder]: read_records(folder / "metrics.jsonl", "step") for folder in found}
    assert len(steps["outer"]) == 1
    assert not steps["inner"]


def test_an_exception_that_ends_the_study_ends_its_run(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path, **QUIET)

    class Model:
        pass

    models = []

    def fail(trial):
        model = Model()
        models.append(weakref.ref(model))
        raise Diverged("at once")

    study = optuna.create_study()
    with pytest.raises(Diverged):
        study.optimize(telemetry.live(fail), n_trials=1)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(Diverged):
            telemetry.live(fail)(study.ask())
        # Not only with the next collection: it may hold the memory of a GPU.
        wait_until(lambda: models[-1]() is None)
    finally:
        gc.enable()

    assert read_manifest(tmp_path / "trial-0").sessions[-1].status == "failed"
    assert read_records(tmp_path / "trial-0/metrics.jsonl", "error")[0]["message"] == "Diverged: at once"
