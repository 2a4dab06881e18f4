from __future__ import annotations

import copy
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.lazy_module import LazyModule
from tests.lengths import in_make_faults
from tests.records import read_records, state_of
from tests.telemetry.integrations.tiny_language_model import make_examples, make_model
from tests.telemetry.logged import PATIENCE_S, Arriving, make_logger
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.options import OptionsError
from toolkit.telemetry.logger.records.device_scalars import PendingScalar
from toolkit.telemetry.logger.spans.recorder import SpanRecorder

transformers = LazyModule("transformers")
ours = LazyModule("toolkit.telemetry.integrations.transformers")
callback_module = LazyModule("toolkit.telemetry.integrations.transformers.callback")
odd_trainers = LazyModule("tests.telemetry.integrations.odd_trainers")

QUIET = {"system": False, "csv": False, "close_timeout": PATIENCE_S}


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


@pytest.fixture(scope="module")
def monkeypatch_of_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def trained(tmp_path_factory, monkeypatch_of_module):
    """A whole training: two epochs of two steps, evaluated and saved after each, logged at each step."""
    folder = tmp_path_factory.mktemp("trained")
    monkeypatch_of_module.setenv("TENSORBOARD_LOGGING_DIR", str(folder / "tensorboard"))
    telemetry = ours.TelemetryCallback(log_dir=folder / "logs", log_every=1, perf_tag="tiny", **QUIET)
    trainer = make_trainer(
        folder,
        telemetry,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        include_num_input_tokens_seen="all",
        metric_for_best_model="loss",
        run_name="greyjacket",
        report_to="tensorboard",
    )
    trainer.train()
    return SimpleNamespace(
        folder=folder, trainer=trainer, telemetry=telemetry, history=trainer.state.log_history
    )


def test_each_step_has_the_numbers_of_the_trainers_own_history(trained):
    steps = records(trained.folder, "step")
    history = [entry for entry in trained.history if "loss" in entry]

    assert [step["global_step"] for step in steps] == [1, 2, 3, 4]
    for step, entry in zip(steps, history, strict=True):
        assert step["train_loss"] == pytest.approx(entry["loss"], rel=1e-6)
        assert step["loss"] == entry["loss"]
        assert step["lr"] == entry["learning_rate"]
        assert step["grad_norm"] == pytest.approx(entry["grad_norm"])
        assert step["epoch"] == entry["epoch"]
        assert step["num_input_tokens_seen"] == entry["num_input_tokens_seen"]
        assert step["nan_inf_detected"] is False


def test_the_start_record_describes_model_and_training(trained):
    (start,) = records(trained.folder, "start")

    assert start["run_name"] == "greyjacket"
    assert start["perf_tag"] == "tiny"
    assert start["model_architecture"] == "LlamaForCausalLM"
    assert start["model_total_params"] == trained.trainer.model.num_parameters()
    assert start["model_trainable_params"] == start["model_total_params"]
    assert start["batch_size"] == 2
    assert start["gradient_accumulation_steps"] == 2
    assert start["effective_batch_size"] == 4
    assert start["max_steps"] == 4
    assert start["learning_rate"] == 0.01
    assert start["trainer"] == "Trainer"
    assert start["config"]["num_train_epochs"] == 2
    assert "resumed_from_step" not in start


def test_an_evaluation_is_a_record_of_its_own_kind(trained):
    evaluations = records(trained.folder, "eval")
    history = [entry for entry in trained.history if "eval_loss" in entry]

    assert [entry["global_step"] for entry in evaluations] == [2, 4]
    assert [entry["eval_loss"] for entry in evaluations] == [entry["eval_loss"] for entry in history]


def test_complete_epochs_are_recorded(trained):
    assert [(entry["epoch"], entry["global_step"]) for entry in records(trained.folder, "epoch")] == [
        (1, 2),
        (2, 4),
    ]


def test_a_checkpoint_has_its_path_size_and_seconds(trained):
    saved = records(trained.folder, "checkpoint")

    assert [entry["global_step"] for entry in saved] == [2, 4]
    for entry in saved:
        assert entry["checkpoint_path"] == str(trained.folder / f"out/checkpoint-{entry['global_step']}")
        assert entry["bytes"] > 10_000
        assert entry["seconds"] > 0
        assert "timed_since" not in entry
    assert saved[1]["is_best"] is True


def test_time_is_recorded_by_phase(trained):
    spans = records(trained.folder, "span")
    summary = records(trained.folder, "span_summary")[-1]["span_times"]

    names = [span["name"] for span in spans]
    assert names.count("validation_loop") == 2
    assert names.count("checkpoint_save_sync") == 2
    assert names.count("training_loop") == 1
    assert names.count("application") == 1
    assert not [span for span in spans if "error" in span or "unfinished" in span]
    counts = {name: summary[name]["count"] for name in ("training_iteration", "backward", "optimizer_update")}
    assert counts == {"training_iteration": 4, "backward": 8, "optimizer_update": 4}
    assert summary["data_loading"]["count"] == 4
    # Eight micro-batches, and the batch of each evaluation.
    assert summary["forward"]["count"] == 8 + summary["validation_iteration"]["count"]


def test_the_trainers_own_methods_are_profiled_without_a_line(trained):
    found = [name for step in records(trained.folder, "step") for name in step]
    summary = records(trained.folder, "span_summary")[-1]["span_times"]

    for method in ("training_step", "compute_loss"):
        assert f"profiling/Trainer.{method}" in found
        assert summary[f"profiling/Trainer.{method}"]["count"] >= 8
    assert summary["profiling/Trainer.prediction_step"]["count"] >= 1
    assert summary["profiling/Trainer._save_checkpoint"]["count"] >= 1


def test_profiling_can_be_switched_off(tmp_path):
    make_trainer(
        tmp_path, ours.TelemetryCallback(log_dir=str(tmp_path / "logs"), profiling=False, **QUIET)
    ).train()

    assert not [name for record in records(tmp_path) for name in record if name.startswith("profiling/")]


def test_training_metrics_have_steps_samples_and_tokens(trained):
    (update,) = [
        event["attributes"]
        for event in records(trained.folder, "span_event")
        if event["name"] == "training_metrics_update"
    ]

    assert update["num_iterations"] == 4
    assert update["num_train_samples"] == 16
    assert update["train_tokens"] == 16 * 8


def test_a_run_that_ends_is_finished_and_its_trainer_as_it_was(trained):
    assert status(trained.folder) == "finished"
    assert records(trained.folder, "error") == []
    assert records(trained.folder, "end")[0]["telemetry_errors"] == 0
    assert not {"training_step", "_run_epoch", "compute_loss"} & set(vars(trained.trainer))
    assert "backward" not in vars(trained.trainer.accelerator)


def test_the_training_is_the_same_as_without_us(trained, tmp_path):
    alone = make_trainer(tmp_path)
    alone.train()

    # Steps of both have the same logs, but for what only one of them counts.
    losses = [entry["loss"] for entry in alone.state.log_history if "loss" in entry]
    assert losses == [entry["loss"] for entry in trained.history if "loss" in entry]
    ours = trained.trainer.model.state_dict()
    assert all(torch.equal(weight, ours[name]) for name, weight in alone.model.state_dict().items())


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_a_resumed_training_resumes_its_run_and_shows_what_it_loaded(trained, tmp_path, has_optimizer):
    shutil.copytree(trained.folder / "logs", tmp_path / "logs")
    shutil.copytree(trained.folder / "out/checkpoint-4", tmp_path / "elsewhere")
    if not has_optimizer:
        (tmp_path / "elsewhere/optimizer.pt").unlink()
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", log_every=1, **QUIET)
    trainer = make_trainer(tmp_path, telemetry, num_train_epochs=3, run_name="another name")
    trainer.train(resume_from_checkpoint=str(tmp_path / "elsewhere"))

    second = [record for record in records(tmp_path) if record["session"] == 2]
    (start,) = [record for record in second if record["event"] == "start"]
    assert start["resumed_from_step"] == 4
    assert [record["global_step"] for record in second if record["event"] == "step"] == [5, 6]
    assert len(json.loads((only_run(tmp_path) / "run.json").read_text())["sessions"]) == 2
    first, *saved, loaded = records(tmp_path, "state")
    assert (first["at"], first["optimizer_step"], first["optimizer_states"]) == ("start", 0, 0)
    assert [record["optimizer_step"] for record in saved] == [2, 4]
    assert (loaded["at"], loaded["checkpoint"], loaded["scheduler_step"] == 4) == (
        "load",
        "elsewhere",
        has_optimizer,
    )
    if has_optimizer:
        assert state_of(loaded) == state_of(saved[-1])
    else:
        assert (loaded["optimizer_step"], loaded["weights_norm"]) == (0, saved[-1]["weights_norm"])


def test_a_loss_hidden_by_the_trainers_filter_is_recorded(tmp_path):
    trainer = make_trainer(
        tmp_path,
        ours.TelemetryCallback(log_dir=tmp_path / "logs", **QUIET),
        trainer=odd_trainers.NanAt,
        logging_steps=4,
    )
    trainer.train()

    # The gradients are NaN too, so every later loss is NaN.
    steps = steps_of(records(tmp_path, "step"))
    assert steps[3]["nan_inf_detected"] is True
    assert steps[3]["non_finite"] == {"train_loss": "NaN", "grad_norm": "NaN", "grad_norm_max": "NaN"}
    assert math.isfinite(trainer.state.log_history[0]["loss"])
    (said,) = records(tmp_path, "nan_inf_filter")
    assert said["global_step"] == 3
    assert said["nan_inf_filter_hides_this"] is True
    assert records(tmp_path, "train_summary")[0]["losses_hidden_by_nan_inf_filter"] == 2


def test_what_the_trainer_logs_is_kept_at_steps_that_log_every_folds(tmp_path):
    trainer = make_trainer(
        tmp_path, ours.TelemetryCallback(log_dir=tmp_path / "logs", log_every=100, **QUIET), logging_steps=3
    )
    trainer.train()

    steps = steps_of(records(tmp_path, "step"))
    assert steps[3]["loss"] == trainer.state.log_history[0]["loss"]
    # The step's own loss, where the Trainer's is a mean over three.
    assert steps[3]["train_loss"] != pytest.approx(steps[3]["loss"], rel=1e-6)


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


def test_a_save_request_is_carried_out_at_its_step(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", **QUIET)
    make_trainer(tmp_path, telemetry, odd_trainers.AskAt(telemetry, 3, actions=["save"])).train()

    assert [entry["global_step"] for entry in records(tmp_path, "checkpoint")] == [3]
    (answer,) = records(tmp_path, "control_change")
    assert (answer["status"], answer["global_step"]) == ("applied", 3)
    assert (tmp_path / "out/checkpoint-3/telemetry_run.json").exists()


def test_save_and_stop_saves_first(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", **QUIET)
    trainer = make_trainer(
        tmp_path,
        telemetry,
        odd_trainers.AskAt(telemetry, 2, actions=["save_and_stop"]),
        logging_strategy="no",
    )
    trainer.train()

    assert trainer.state.global_step == 2
    assert [entry["global_step"] for entry in records(tmp_path, "checkpoint")] == [2]
    assert status(tmp_path) == "stopped"


def test_an_evaluation_and_an_interval_can_be_requested(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", **QUIET)
    ask = odd_trainers.AskAt(telemetry, 1, actions=["evaluate"], knobs={"logging_steps": 2})
    trainer = make_trainer(tmp_path, telemetry, ask)
    trainer.train()

    assert [entry["global_step"] for entry in records(tmp_path, "eval")] == [1]
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [1, 2, 4]


def test_a_failure_is_recorded_and_raised_unchanged(tmp_path):
    error = RuntimeError("the disk of the data is gone")
    trainer = make_trainer(
        tmp_path,
        odd_trainers.FailAt(2, error),
        ours.TelemetryCallback(log_dir=tmp_path / "logs", **QUIET),
        logging_steps=100,
    )

    with pytest.raises(RuntimeError) as raised:
        trainer.train()

    assert raised.value is error
    assert status(tmp_path) == "failed"
    (recorded,) = records(tmp_path, "error")
    assert recorded["message"] == "RuntimeError: the disk of the data is gone"
    stack = "\n".join(recorded["stack"])
    assert f"in {test_a_failure_is_recorded_and_raised_unchanged.__name__}\n" in stack, (
        "who began the training"
    )
    assert "telemetry/integrations/transformers/" not in stack.replace("tests/telemetry/integrations", "")
    (loop,) = [span for span in records(tmp_path, "span") if span["name"] == "training_loop"]
    assert loop["error"]["type"] == "RuntimeError"
    assert not {"training_step", "_run_epoch"} & set(vars(trainer))


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin", "on_epoch_end", "on_step_end"])
def test_another_callback_that_fails_ends_the_run(tmp_path, hook):
    def fail(trainer, state, control):
        raise RuntimeError("another callback's")

    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", **QUIET)
    with pytest.raises(RuntimeError, match="another callback's"):
        train_with(tmp_path, telemetry, odd_trainers.AtHook(hook, fail))

    assert status(tmp_path) == "failed"
    assert not telemetry.log.is_live


def test_an_interruption_is_no_failure(tmp_path):
    trainer = make_trainer(
        tmp_path,
        ours.TelemetryCallback(log_dir=tmp_path / "logs", **QUIET),
        odd_trainers.FailAt(2, KeyboardInterrupt()),
    )

    with pytest.raises(KeyboardInterrupt):
        trainer.train()

    assert status(tmp_path) == "stopped"
    assert records(tmp_path, "end")[0]["reason"] == "interrupted"


def test_switched_off_it_does_nothing_and_writes_nothing(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", enabled=False)
    put = set()

    def look(trainer, state, control):
        owners = (trainer, trainer.accelerator, trainer.callback_handler)
        put.update(
            name for owner in owners for name in vars(owner) if callable(getattr(type(owner), name, None))
        )

    train_with(tmp_path, telemetry, odd_trainers.AtHook("on_step_end", look), num_train_epochs=1)

    assert put == set()
    assert not (tmp_path / "logs").exists()
    assert telemetry.log is None
    assert telemetry.is_live is False


BROKEN = (
    "__init__",
    "declare_action",
    "log_epoch",
    "log_event",
    "log_start",
    "log_step",
    "make",
    "start_span",
)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_logger_does_not_stop_the_training(trained, tmp_path, monkeypatch, broken):
    def fail(*args, **kwargs):
        raise ValueError("broken")

    monkeypatch.setattr(SpanRecorder if broken == "make" else TelemetryLogger, broken, fail)
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", **QUIET)
    trainer = make_trainer(tmp_path, telemetry)
    trainer.train()

    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == [entry["loss"] for entry in trained.history if "loss" in entry]
    assert telemetry.guard.total > 0
    assert broken == "__init__" or status(tmp_path) == "finished"


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


def test_a_training_within_a_training_has_a_run_of_its_own(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", log_every=1, **QUIET)

    def train_another(trainer, state, control):
        if state.global_step == 1:
            make_trainer(tmp_path, telemetry, num_train_epochs=1, run_name="inner").train()

    train_with(tmp_path, telemetry, odd_trainers.AtHook("on_step_end", train_another), run_name="outer")

    steps = {
        run: [step["global_step"] for step in read_records(tmp_path / f"logs/{run}/metrics.jsonl", "step")]
        for run in ("outer", "inner")
    }
    assert steps == {"outer": [1, 2, 3, 4], "inner": [1, 2]}
    for run in steps:
        (end,) = read_records(tmp_path / f"logs/{run}/metrics.jsonl", "end")
        assert (end["status"], end["telemetry_errors"]) == ("finished", 0)


def test_a_copy_of_a_trainer_is_on_its_own(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", log_every=1, **QUIET)
    copies = []
    look = odd_trainers.AtHook(
        "on_step_end",
        lambda trainer, state, control: state.global_step == 1 and copies.append(copy.deepcopy(trainer)),
    )
    trainer = make_trainer(tmp_path, telemetry, look)
    copies.append(copy.deepcopy(trainer))
    look.trainer = trainer
    trainer.train()
    copies.append(copy.deepcopy(trainer))

    for copied in copies:
        assert copied.training_step.__self__ is copied
        assert copied.accelerator.backward.__self__ is copied.accelerator
        (callback,) = (
            one for one in copied.callback_handler.callbacks if isinstance(one, ours.TelemetryCallback)
        )
        assert callback is not telemetry
        assert callback.log is None
    copies[1].train()
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["out", "out-2"]
    assert [step["global_step"] for step in read_records(tmp_path / "logs/out-2/metrics.jsonl", "step")] == [
        1,
        2,
        3,
        4,
    ]


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


def test_where_the_trainer_is_not_found_its_hooks_and_logs_are_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "toolkit.telemetry.integrations.transformers.callback.calling_trainer", lambda callback: (None, None)
    )
    trainer = make_trainer(
        tmp_path,
        ours.TelemetryCallback(log_dir=tmp_path / "logs", log_every=1, **QUIET),
        num_train_epochs=1,
        save_strategy="epoch",
        eval_strategy="epoch",
    )
    trainer.train()

    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [step["train_loss"] for step in records(tmp_path, "step")] == losses
    (saved,) = records(tmp_path, "checkpoint")
    assert saved["timed_since"] == "the last hook before it"
    spans = [span["name"] for span in records(tmp_path, "span")]
    assert spans.count("validation_loop") == 1
    assert spans.count("checkpoint_save_sync") == 1
    assert records(tmp_path, "end")[0]["telemetry_errors"] == 0


def test_a_wrong_option_is_rejected_at_once():
    with pytest.raises(OptionsError, match="log_evry"):
        ours.TelemetryCallback(log_evry=3)


def test_a_loss_that_arrives_late_from_its_device_is_seen_before_the_summary(tmp_path):
    memory = Arriving()
    filtered = callback_module.FilterWatch(is_on=True)
    filtered._device = SimpleNamespace(take=lambda loss: PendingScalar(memory, loss, "f32"))
    with make_logger(tmp_path) as log:
        for step, place in enumerate((1, 2), start=6):
            filtered.check(log, step, place)
        before = filtered.hidden
        memory.values = {1: 0.5, 2: math.inf}
        filtered.check_arrived(log)

    assert (before, filtered.hidden) == (0, 1)
    (said,) = read_records(tmp_path / "r/metrics.jsonl", "nan_inf_filter")
    assert said["global_step"] == 7


TWO_RANKS = Path(__file__).parent / "programs" / "transformers_on_two_ranks.py"


@in_make_faults
@pytest.mark.slow
def test_two_ranks_write_one_run_and_stop_at_the_same_step(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    finished = subprocess.run(
        [*command, TWO_RANKS, tmp_path],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert finished.returncode == 0, finished.stderr
    first, second = ((tmp_path / f"ended-{rank}").read_text() for rank in (0, 1))
    assert first == second
    assert [str(entry["global_step"]) for entry in records(tmp_path, "checkpoint")] == [first]
    assert records(tmp_path, "start")[0]["effective_batch_size"] == 8
    # Nothing is written there, so that nothing is timed: only a failure must be seen.
    assert (tmp_path / "put-on-the-other").read_text() == "_evaluate _finalize_training _run_epoch"
    assert status(tmp_path) == "stopped"


def test_speed_and_forward_passes_are_the_trainings_alone(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path / "logs", log_every=1, **QUIET)
    beside = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    make_trainer(tmp_path, telemetry, trainer=odd_trainers.SlowBeside, **beside).train()

    steps = records(tmp_path, "step")
    between = steps[2]["elapsed"] - steps[1]["elapsed"]
    # One batch is evaluated and a checkpoint saved after the second step.
    assert steps[2]["sec_per_step"] <= between - 2 * odd_trainers.SlowBeside.SLOW_S
    forward = records(tmp_path, "span_summary")[-1]["span_times"]["forward"]
    assert (
        sum(step["time/forward"] for step in steps) <= forward["total"] - 2 * odd_trainers.SlowBeside.SLOW_S
    )
    assert forward["count"] == 8 + 2
