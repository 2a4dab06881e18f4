from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

from tests.lazy_module import LazyModule
from tests.records import read_records
from tests.telemetry.integrations import control_requests
from tests.telemetry.integrations.tiny_language_model import make_examples, make_model
from tests.telemetry.logged import QUIET, make_logger

transformers = LazyModule("transformers")
ours = LazyModule("toolkit.telemetry.integrations.transformers")
odd_trainers = LazyModule("tests.telemetry.integrations.odd_trainers")


def make_trainer(folder, *callbacks, trainer=None, model=None, **arguments):
    """Return a trainer of a tiny model on eight examples, four a step: two steps an epoch by default."""
    given = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "learning_rate": 0.01,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        **arguments,
    }
    return (trainer or transformers.Trainer)(
        model=model or make_model(),
        args=transformers.TrainingArguments(**given),
        train_dataset=make_examples(8),
        eval_dataset=make_examples(4),
        callbacks=list(callbacks),
    )


def only_run(folder):
    """Return the folder of the only run that was logged."""
    runs = [path.parent for path in (folder / "logs").glob("*/run.json")]
    assert len(runs) == 1
    return runs[0]


def records(folder, event=None):
    return read_records(only_run(folder) / "metrics.jsonl", event)


def status(folder):
    manifest = json.loads((only_run(folder) / "run.json").read_text())
    return manifest["sessions"][-1]["status"]


def steps_of(found):
    """Return what is known of each step, from however many records."""
    steps = {}
    for record in found:
        steps.setdefault(record["global_step"], {}).update(record)
    return steps


def train_with(folder, *callbacks, **arguments):
    """Train with callbacks, of which those that want to know the trainer do; return it."""
    trainer = make_trainer(folder, *callbacks, **arguments)
    for callback in callbacks:
        if isinstance(callback, odd_trainers.AtHook):
            callback.trainer = trainer
    trainer.train()
    return trainer


def train_fully(folder, **options):
    """Train two epochs of two steps, evaluated and saved after each, logged at each step."""
    telemetry = ours.TelemetryCallback(
        log_dir=folder / "logs", log_every=1, perf_tag="tiny", **QUIET, **options
    )

    trainer = train_with(
        folder,
        telemetry,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        include_num_input_tokens_seen="all",
        metric_for_best_model="loss",
        run_name="greyjacket",
    )
    return SimpleNamespace(folder=folder, trainer=trainer, history=trainer.state.log_history)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A whole training, recorded by the Trainer's public hooks."""
    return train_fully(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The same with `phases=True`."""
    return train_fully(tmp_path_factory.mktemp("trained"), phases=True)


@pytest.fixture(params=["plain", "trained"])
def either(request):
    """A whole training, without and with `phases=True`."""
    return request.getfixturevalue(request.param)


def test_each_step_has_the_numbers_of_the_trainers_own_history(either):
    steps = records(either.folder, "step")
    history = [entry for entry in either.history if "loss" in entry]

    assert [step["global_step"] for step in steps] == [1, 2, 3, 4]
    for step, entry in zip(steps, history, strict=True):
        assert step["train_loss"] == pytest.approx(entry["loss"], rel=1e-6)
        assert step["loss"] == entry["loss"]
        assert step["lr"] == entry["learning_rate"]
        assert step["grad_norm"] == pytest.approx(entry["grad_norm"])
        assert step["epoch"] == entry["epoch"]
        assert step["num_input_tokens_seen"] == entry["num_input_tokens_seen"]
        assert step["nan_inf_detected"] is False
    evaluations = [entry for entry in either.history if "eval_loss" in entry]
    assert [found["eval_loss"] for found in records(either.folder, "eval")] == [
        entry["eval_loss"] for entry in evaluations
    ]
    assert records(either.folder, "checkpoint")[-1]["is_best"] is True


def test_the_run_of_a_step_without_a_log_has_the_rate_and_with_phases_the_loss(tmp_path):
    for phases in (False, True):
        folder = tmp_path / str(phases)
        telemetry = ours.TelemetryCallback({"log_dir": str(folder / "logs"), "phases": phases}, **QUIET)
        trainer = make_trainer(folder, telemetry, logging_steps=3)
        trainer.train()
        steps = steps_of(records(folder, "step"))
        (mean,) = (entry["loss"] for entry in trainer.state.log_history if "loss" in entry)

        assert steps[3]["loss"] == mean
        assert (steps[3]["train_loss"] == pytest.approx(mean, rel=1e-6)) is not phases
        assert 0 < steps[1]["lr"] <= 0.01
        assert ("train_loss" in steps[1]) is phases


def test_with_phases_a_loss_hidden_by_the_trainers_filter_is_recorded(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", phases=True, **QUIET)
    trainer = make_trainer(tmp_path, telemetry, trainer=odd_trainers.NanAt, logging_steps=4)
    trainer.train()

    # The gradients are NaN too, so every later loss is NaN.
    steps = steps_of(records(tmp_path, "step"))
    assert steps[3]["nan_inf_detected"] is True
    assert steps[3]["non_finite"]["train_loss"] == "NaN"
    assert math.isfinite(trainer.state.log_history[0]["loss"])


def test_complete_epochs_are_recorded(either):
    assert [(entry["epoch"], entry["global_step"]) for entry in records(either.folder, "epoch")] == [
        (1, 2),
        (2, 4),
    ]


def test_the_trainers_own_methods_are_profiled_without_a_line(trained):
    found = [name for step in records(trained.folder, "step") for name in step]
    summary = records(trained.folder, "span_summary")[-1]["span_times"]

    for method in ("training_step", "compute_loss"):
        assert f"profiling/Trainer.{method}" in found
        assert summary[f"profiling/Trainer.{method}"]["count"] >= 8
    assert summary["profiling/Trainer.prediction_step"]["count"] >= 1
    assert summary["profiling/Trainer._save_checkpoint"]["count"] >= 1


def test_training_metrics_have_steps_samples_and_tokens(either):
    (update,) = [
        event["attributes"]
        for event in records(either.folder, "span_event")
        if event["name"] == "training_metrics_update"
    ]

    assert update["num_iterations"] == 4
    assert update["num_train_samples"] == 16
    assert update["train_tokens"] == 16 * 8


def test_metrics_of_the_callers_own_are_kept_and_what_is_no_number_is_left_out(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", **QUIET)
    make_trainer(tmp_path, telemetry, trainer=odd_trainers.Talkative, num_train_epochs=1).train()

    found = records(tmp_path, "step")
    assert not [record for record in found if not {"mine", "train_loss"} & set(record)]
    steps = steps_of(found)
    assert steps[1]["mine"] == 0.5
    assert not {"note", "flag", "table", "unencodable"} & set(steps[1])
    assert steps[1]["train_loss"] == pytest.approx(steps[1]["loss"])


def test_an_evaluation_on_the_training_data_is_neither_a_step_nor_the_end(tmp_path):
    def evaluate(trainer, state, control):
        trainer.evaluate(trainer.train_dataset, metric_key_prefix="train")

    train_with(
        tmp_path,
        ours.TelemetryCallback(log_dir=tmp_path / "logs", log_every=1, **QUIET),
        odd_trainers.AtHook("on_epoch_end", evaluate),
    )

    assert [entry["global_step"] for entry in records(tmp_path, "eval")] == [2, 4]
    assert all("train_samples_per_second" in entry for entry in records(tmp_path, "eval"))
    assert len(records(tmp_path, "train_summary")) == 1
    assert [entry["global_step"] for entry in records(tmp_path, "step")] == [1, 2, 3, 4]


def test_a_step_that_is_cut_short_among_its_micro_batches_is_not_counted(tmp_path):
    to_cut = [1]

    def cut(trainer, state, control):
        control.should_epoch_stop = state.global_step in to_cut
        to_cut[:] = [] if control.should_epoch_stop else to_cut

    train_with(
        tmp_path,
        ours.TelemetryCallback(log_dir=tmp_path / "logs", log_every=1, **QUIET),
        odd_trainers.AtHook("on_substep_end", cut),
        max_steps=3,
        num_train_epochs=-1,
    )

    (update,) = [e for e in records(tmp_path, "span_event") if e["name"] == "training_metrics_update"]
    assert update["attributes"]["num_iterations"] == 3
    assert not [span for span in records(tmp_path, "span") if "error" in span]
    assert records(tmp_path, "end")[0]["telemetry_errors"] == 0


def test_an_evaluation_and_an_interval_can_be_requested(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", **QUIET)
    request = {"actions": ["evaluate"], "knobs": {"logging_steps": 2}}
    asking = odd_trainers.At(1, lambda _: control_requests.ask(telemetry.log, **request))
    trainer = make_trainer(tmp_path, telemetry, asking, eval_strategy="steps", eval_steps=4)
    trainer.train()

    assert [entry["global_step"] for entry in records(tmp_path, "eval")] == [1, 4]
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [1, 2, 4]


def test_a_logger_of_the_callers_stays_open(tmp_path):
    log = make_logger(tmp_path / "logs", log_every=1)
    trainer = make_trainer(tmp_path, ours.TelemetryCallback(log), num_train_epochs=1)
    trainer.train()
    trainer.evaluate()
    trainer.train()
    log.close()

    assert [step["global_step"] for step in records(tmp_path, "step")] == [1, 2, 1, 2]
    assert [entry["global_step"] for entry in records(tmp_path, "eval")] == [2]
    spans = [span["name"] for span in records(tmp_path, "span")]
    assert spans.count("validation_loop") == 1
    assert records(tmp_path, "end")[0]["telemetry_errors"] == 0


def test_a_second_callback_on_the_same_trainer_stays_silent(tmp_path, caplog):
    first = ours.TelemetryCallback(log_dir=tmp_path / "logs", **QUIET)
    trainer = make_trainer(tmp_path, first, num_train_epochs=1)
    trainer.add_callback(ours.TelemetryCallback(log_dir=tmp_path / "logs", **QUIET))
    trainer.train()

    assert status(tmp_path) == "finished"
    assert "already has another TelemetryCallback" in caplog.text


def test_report_to_records_a_training_by_name_unless_the_script_has_a_callback(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TELEMETRY_LOG_DIR", str(tmp_path / "logs"))
    both = transformers.TrainingArguments(output_dir=str(tmp_path), report_to="all").report_to
    make_trainer(tmp_path, num_train_epochs=1, report_to="telemetry").train()

    assert "telemetry" not in both
    assert status(tmp_path) == "finished"
    assert [step["global_step"] for step in records(tmp_path, "step")] == [1, 2]

    mine = ours.TelemetryCallback(log_dir=tmp_path / "mine", **QUIET)
    make_trainer(tmp_path, mine, num_train_epochs=1, report_to=["telemetry"]).train()

    assert only_run(tmp_path)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["out"]
    assert "already has another TelemetryCallback" not in caplog.text


def test_speed_and_forward_passes_are_the_trainings_alone(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", log_every=1, phases=True, **QUIET)
    others = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    make_trainer(tmp_path, telemetry, trainer=odd_trainers.SlowElsewhere, **others).train()

    steps = records(tmp_path, "step")
    between = steps[2]["elapsed"] - steps[1]["elapsed"]
    # One batch is evaluated and a checkpoint saved after the second step.
    assert steps[2]["sec_per_step"] <= between - 2 * odd_trainers.SlowElsewhere.SLOW_S
    forward = records(tmp_path, "span_summary")[-1]["span_times"]["forward"]
    assert (
        sum(step["time/forward"] for step in steps)
        <= forward["total"] - 2 * odd_trainers.SlowElsewhere.SLOW_S
    )
    assert forward["count"] == 8 + 2
