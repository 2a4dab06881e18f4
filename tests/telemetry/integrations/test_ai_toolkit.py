"""The hooks on a fake of ai-toolkit's trainers, which trains two numbers; see fake_ai_toolkit.py."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import time
from pathlib import Path

import pytest

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.integrations.ai_toolkit import outputs, steps, watched_process
from toolkit.telemetry.integrations.ai_toolkit.hooks import hook_class, options_of_process
from toolkit.telemetry.integrations.ai_toolkit.written_files import weights_in
from toolkit.telemetry.logger.machine.environment import this_process_began
from toolkit.telemetry.timing.history import read_run_time

FAKE = Path(__file__).with_name("fake_ai_toolkit.py")


@pytest.fixture
def stand_in():
    """The fake ai-toolkit, with nothing attached to it yet."""
    spec = importlib.util.spec_from_file_location("stand_in", FAKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def config(tmp_path):
    """A job of ten steps that validates, saves and samples."""
    return {
        "job": "extension",
        "config": {
            "name": "greyjacket",
            "process": [
                {
                    "type": "sd_trainer",
                    "training_folder": str(tmp_path / "output"),
                    "telemetry": {
                        "log_dir": str(tmp_path / "logs"),
                        "log_every": 1,
                        "system": False,
                        "close_timeout": PATIENCE_S,
                    },
                    "network": {"type": "lora", "linear": 16, "linear_alpha": 8},
                    "save": {"save_every": 4},
                    "train": {"steps": 10, "validate_every": 5, "lr": 0.1, "batch_size": 2},
                    "model": {"name_or_path": "two-numbers"},
                    "sample": {"sample_every": 6, "prompts": ["one [trigger]", "two"]},
                }
            ],
        },
    }


@pytest.fixture
def process_config(config):
    return config["config"]["process"][0]


@pytest.fixture
def make(stand_in, config, process_config):
    """Attach, and make the trainer of the job."""

    def make():
        hook_class(stand_in.BaseSDTrainProcess)
        return stand_in.SDTrainer(0, stand_in.Job(config), process_config)

    return make


@pytest.fixture
def trained(make):
    process = make()
    process.run()
    return process


@pytest.fixture
def run_folder(tmp_path):
    return tmp_path / "logs" / "greyjacket"


@pytest.fixture
def records(run_folder):
    return lambda event=None: read_records(run_folder / "metrics.jsonl", event)


def ask(folder, request):
    fresh = folder / "control.json.new"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(descriptor, json.dumps({**request, "timestamp": time.time()}).encode())
    os.close(descriptor)
    os.replace(fresh, folder / "control.json")


def asks_at(step, folder, request):
    """Return what asks for something at a step, and holds the steps up after it until there is an answer."""
    answered = []

    def on_step(process):
        if process.step_num == step:
            ask(folder, request)
        if process.step_num >= step and not answered:
            time.sleep(0.05)
            records = folder / "metrics.jsonl"
            if records.exists() and b'"control_change"' in records.read_bytes():
                answered.append(process.step_num)

    return on_step


# What is recorded.


def test_every_step_is_recorded_as_the_trainer_itself_logs_it(trained, records):
    own = trained.logger.committed

    steps = records("step")
    assert [step["global_step"] for step in steps] == list(range(10))
    assert [step["train_loss"] for step in steps] == [own[step]["loss/loss"] for step in range(10)]
    assert [step["loss/extra"] for step in steps] == [own[step]["loss/extra"] for step in range(10)]
    assert {step["lr"] for step in steps} == {0.1}
    assert not any(step["nan_inf_detected"] for step in steps)
    assert records("end")[0]["status"] == "finished"
    assert records("end")[0]["telemetry_errors"] == 0


def test_the_gradient_norm_is_that_of_all_groups_before_clipping(trained, stand_in, records):
    gradients = stand_in.Network().gradients([0.1, 0.2])

    assert records("step")[0]["grad_norm"] == pytest.approx(math.hypot(*gradients))


def test_additional_logs_of_a_trainer_are_written_with_their_step(make, process_config, records):
    def on_step(process):
        if process.step_num in (2, 3, 7):
            process.additional_logs["loss/audio"] = process.step_num / 8

    process_config["on_step"] = on_step
    process_config["logging"] = {"log_every": 5}
    make().run()

    recorded = {step["global_step"]: step["loss/audio"] for step in records("step") if "loss/audio" in step}
    assert recorded == {2: 0.25, 3: 0.375, 7: 0.875}


def test_a_checkpoint_is_the_weights_and_not_the_optimizer(trained, records, tmp_path):
    saved = records("checkpoint")

    root = tmp_path / "output" / "greyjacket"
    assert "post_save_hook optimizer.pt" in trained.calls
    assert [(save["global_step"], save["checkpoint_path"]) for save in saved] == [
        (4, str(root / "greyjacket_000000004.safetensors")),
        (8, str(root / "greyjacket_000000008.safetensors")),
        (10, str(root / "greyjacket.safetensors")),
    ]
    assert [save["bytes"] for save in saved] == [os.path.getsize(save["checkpoint_path"]) for save in saved]
    assert all(save["seconds"] > 0 for save in saved)


def test_validation_epochs_and_samples_are_recorded(trained, records, run_folder, tmp_path):
    assert [(record["global_step"], record["val_loss"]) for record in records("eval")] == [
        (step, trained.logger.committed[step]["val/loss"]) for step in (0, 5)
    ]

    epochs = records("epoch")
    assert [(epoch["epoch"], epoch["global_step"]) for epoch in epochs] == [(1, 2), (2, 5), (3, 8)]

    samples = records("sample")
    assert [(sample["global_step"], sample["prompt"]) for sample in samples] == [
        (step, prompt) for step in (0, 6, 10) for prompt in ("one [trigger]", "two")
    ]
    for sample in samples:
        assert (run_folder / sample["path"]).read_text() == sample["prompt"]
        assert Path(sample["source_path"]).parent == tmp_path / "output" / "greyjacket" / "samples"


def test_the_start_record_describes_the_training(trained, records):
    start = records("start")[-1]

    expected = {
        "lora_rank": 16,
        "lora_alpha": 8,
        "model_name": "two-numbers",
        "model_architecture": "stand_in",
        "model_total_params": 2,
        "model_trainable_params": 2,
        "batch_size": 2,
        "effective_batch_size": 2,
        "optimizer": "adamw",
        "scheduler": "constant",
        "max_steps": 10,
        "trainer": "ai-toolkit",
        "process_type": "sd_trainer",
    }
    assert {key: start.get(key) for key in expected} == expected
    assert "resumed_from_step" not in start


def test_phases_are_spans_and_the_ledger_adds_up(trained, records, run_folder):
    totals = records("span_summary")[-1]["span_times"]

    assert {name: totals[name]["count"] for name in totals} == {
        "application": 1,
        "model_init": 2,
        "optimizer_init": 1,
        "dataloader_init": 1,
        "training_loop": 1,
        "training_iteration": 10,
        "data_loading": 16,
        "forward": 10,
        "backward": 10,
        "optimizer_update": 10,
        "validation_loop": 2,
        "checkpoint_save_sync": 3,
        "sampling": 3,
    }
    names = {record["id"]: record["name"] for record in records("span")}
    parents = {record["name"]: names.get(record.get("parent_id")) for record in records("span")}
    assert parents["training_iteration"] == "training_loop"
    assert parents["data_loading"] == parents["forward"] == "training_iteration"
    assert parents["checkpoint_save_sync"] == parents["sampling"] == "training_loop"
    assert not any("error" in record or "unfinished" in record for record in records("span"))

    ledger = read_run_time(run_folder).ledger
    assert sum(line.seconds for line in ledger.lines) == pytest.approx(ledger.wall_s, rel=1e-3)


def test_only_the_first_job_of_a_process_began_with_it(make, stand_in, config, process_config, records):
    began = this_process_began()

    def first_application():
        return next(record for record in records("span") if record["name"] == "application")

    make().run()
    assert first_application()["start"] == pytest.approx(began, abs=1.0)

    made = time.time()
    config["config"]["name"] = "another"
    stand_in.SDTrainer(0, stand_in.Job(config), process_config).run()
    later = read_records(Path(process_config["telemetry"]["log_dir"]) / "another" / "metrics.jsonl", "span")
    assert next(record for record in later if record["name"] == "application")["start"] >= made


# Where it is switched on.


def test_the_block_may_be_at_three_levels_and_the_innermost_counts(stand_in, config, process_config):
    job = stand_in.Job(config)
    inner = process_config.pop("telemetry")
    process = stand_in.SDTrainer(0, job, process_config)

    assert not options_of_process(process).enabled
    config["telemetry"] = {**inner, "log_every": 7}
    assert options_of_process(process).log_every == 7
    config["config"]["telemetry"] = {**inner, "log_every": 6}
    assert options_of_process(process).log_every == 6
    process_config["telemetry"] = {**inner, "log_every": 5}
    assert options_of_process(process).log_every == 5


def test_what_ai_toolkit_logs_itself_is_not_logged_twice(stand_in, config, process_config):
    process_config["telemetry"]["wandb"] = True
    process_config["telemetry"].pop("log_every")
    process_config.update(log_dir="tb", logging={"use_wandb": True, "log_every": 25, "project_name": "p"})

    options = options_of_process(stand_in.SDTrainer(0, stand_in.Job(config), process_config))

    assert not options.wandb
    assert not options.tensorboard
    assert options.log_every == 25


@pytest.mark.parametrize("block", [{"enabled": False}, False, "absent"])
def test_a_job_that_is_not_to_be_recorded_is_not_touched(block, make, process_config, tmp_path):
    del process_config["telemetry"]
    if block != "absent":
        process_config["telemetry"] = block
    process = make()

    assert "run" not in vars(process)
    process.run()
    assert process.step_num == 10
    assert not (tmp_path / "logs").exists()
    assert "start" not in vars(process.timer)


def test_an_invalid_block_is_reported_and_the_job_is_trained(make, process_config, tmp_path, capsys):
    process_config["telemetry"]["log_evry"] = 3
    process = make()
    process.run()

    assert "log_evry" in capsys.readouterr().err
    assert process.step_num == 10
    assert not (tmp_path / "logs").exists()


def test_attaching_twice_is_attaching_once(make, stand_in, records):
    make()
    make().run()

    assert len(records("step")) == 10


# Trouble.


def test_out_of_memory_is_recorded_and_the_trainer_continues(make, process_config, records):
    process_config["train"]["trouble"] = {"3": "oom", "4": "oom"}
    make().run()

    assert [(oom["global_step"], oom["consecutive"]) for oom in records("oom")] == [(3, 1), (4, 2)]
    assert "Tried to allocate" in records("oom")[0]["message"]
    assert [step["global_step"] for step in records("step")] == [0, 1, 2, 5, 6, 7, 8, 9]
    assert records("end")[0]["status"] == "finished"


def test_a_failure_ends_the_run_as_failed_and_is_raised_as_it_was(make, process_config, records):
    process_config["train"]["trouble"] = {"3": "fail"}
    process = make()
    with pytest.raises(ValueError, match="the picture is broken") as raised:
        process.run()

    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    assert records("end")[0]["status"] == "failed"
    assert records("error")[-1]["type"] == "ValueError"
    failed = {record["name"] for record in records("span") if "error" in record}
    assert {"application", "training_loop", "training_iteration"} <= failed
    assert "clip_grad_norm_" not in vars(process.accelerator)


@pytest.mark.parametrize(
    ("error", "is_stopping", "reason"),
    [
        (KeyboardInterrupt(), False, "interrupted"),
        (Exception("Job stopped"), True, "stopped"),
        (SystemExit(3), False, "failed"),
    ],
)
def test_other_ways_to_end_have_their_names(error, is_stopping, reason, make, process_config, records):
    def on_step(process):
        if process.step_num == 2:
            process.is_stopping = is_stopping
            raise error

    process_config["on_step"] = on_step
    with pytest.raises(type(error)) as raised:
        make().run()

    assert raised.value is error
    assert records("end")[0]["reason"] == reason


def stops_from_its_own_pages(process):
    process.is_stopping = True
    raise Exception("Job returning to queue")


def test_weights_are_recorded_if_the_job_is_stopped_right_after_the_save(
    make, stand_in, monkeypatch, records, tmp_path
):
    save = stand_in.SDTrainer.save

    def save_and_look(process, step=None):
        save(process, step)
        stops_from_its_own_pages(process)

    monkeypatch.setattr(stand_in.SDTrainer, "save", save_and_look)
    with pytest.raises(Exception, match="returning to queue"):
        make().run()

    assert [record["global_step"] for record in records("checkpoint")] == [4]
    assert records("end")[0]["reason"] == "stopped"
    monkeypatch.undo()
    make().run()

    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["greyjacket"]
    assert records("end")[-1]["session"] == 2


LOGGER_CALLS = ("log_step", "log_start", "log_eval", "log_epoch", "log_checkpoint", "log_sample", "span")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((TelemetryLogger, name) for name in (*LOGGER_CALLS, "take_requests")),
        *((watched_process, name) for name in ("weights_in", "start_fields", "declare", "carry_out")),
        (steps, "learning_rate"),
        (outputs, "weights_in"),
        (outputs, "new_samples"),
    ],
)
def test_what_fails_in_telemetry_does_not_reach_the_training(
    owner, name, make, stand_in, config, monkeypatch, tmp_path
):
    def fail(*_, **__):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(owner, name, fail)
    process = make()
    process.run()

    assert process.trained == untouched(stand_in, config, tmp_path)
    assert process.calls[-1] == "done_hook"
    assert process.logger.finished == 1


def test_an_ai_toolkit_whose_timers_have_other_names_is_recorded_still(make, monkeypatch, records):
    monkeypatch.setattr(steps, "_PHASE_OF_TIMER", {})
    make().run()

    assert [step["global_step"] for step in records("step")] == list(range(10))


# What may be asked.


@pytest.fixture
def train_and_ask(make, process_config, run_folder):
    """Train with a request at step 3, and without any saves and samples but those at the end."""

    def train(request, steps=3000, processes=1):
        process_config["train"].update(steps=steps, validate_every=0, skip_first_sample=True)
        process_config["save"]["save_every"] = process_config["sample"]["sample_every"] = 0
        process_config["on_step"] = asks_at(3, run_folder, request)
        process = make()
        process.accelerator.num_processes = processes
        process.run()
        return process

    return train


def test_a_request_to_save_and_stop_ends_the_training_well(train_and_ask, records):
    process = train_and_ask({"actions": ["save_and_stop"]})

    last = records("step")[-1]["global_step"]
    assert 3 <= last < 2999
    saved = records("checkpoint")[-1]
    # As ai-toolkit numbers a save on request: by the steps that are done.
    assert saved["global_step"] == last + 1 == process.step_num
    assert Path(saved["checkpoint_path"]).name == f"greyjacket_{last + 1:09d}.safetensors"
    assert records("control_change")[-1]["status"] == "applied"
    assert records("end")[0]["reason"] == "stopped"
    # What ai-toolkit does at an end, and for a stop by Ctrl-C.
    assert process.progress_bar.closed == process.logger.finished == process.accelerator.ended == 1
    assert [type(error) for error in process.errors] == [KeyboardInterrupt]
    assert "done_hook" not in process.calls
    assert not hasattr(process, "sd")
    assert not hasattr(process, "network")


def test_save_sample_and_interval_requests_are_carried_out_during_training(
    make, process_config, run_folder, records
):
    process_config["train"].update(steps=450, validate_every=0)
    process_config["save"]["save_every"] = 1000
    process_config["sample"]["sample_every"] = 1000
    process_config["on_step"] = asks_at(
        3, run_folder, {"actions": ["save", "sample"], "knobs": {"save_every": 100}}
    )
    process = make()
    process.run()

    assert records("end")[0]["reason"] == "finished"
    assert process.save_config.save_every == 100
    steps = [record["global_step"] for record in records("checkpoint")]
    assert steps[1:] == [step for step in (100, 200, 300, 400, 450) if step >= steps[0]]
    assert {record["global_step"] for record in records("sample")} == {0, steps[0], 450}


@pytest.mark.parametrize(
    ("action", "processes", "reason"),
    [("save", 1, "finished"), ("save_and_stop", 1, "finished"), ("save_and_stop", 2, "stopped")],
)
def test_a_save_on_request_that_fails_ends_the_training_only_where_other_ranks_stop_too(
    action, processes, reason, train_and_ask, records, monkeypatch, stand_in
):
    save = stand_in.SDTrainer.save

    def full(process, step=None):
        if step is not None:
            raise OSError("no space left on device")
        save(process)

    monkeypatch.setattr(stand_in.SDTrainer, "save", full)
    train_and_ask({"actions": [action]}, steps=450, processes=processes)

    assert records("control_change")
    assert records("end")[0]["reason"] == reason
    saved = [record["global_step"] for record in records("checkpoint")]
    assert saved == ([450] if reason == "finished" else [])
    failed = next(record for record in records("span") if record["name"] == "checkpoint_save_sync")
    assert failed["error"]["type"] == "OSError"


def test_a_sampling_on_request_that_fails_ends_the_job_as_one_of_its_own_does(
    train_and_ask, records, monkeypatch, stand_in
):
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def sample(process, step=None, is_first=False):
        raise error

    monkeypatch.setattr(stand_in.SDTrainer, "sample", sample)
    with pytest.raises(RuntimeError) as raised:
        train_and_ask({"actions": ["sample"]})

    assert raised.value is error
    assert records("end")[0]["status"] == "failed"
    assert len(records("step")) < 3000


# Going on.


def test_a_resumed_training_resumes_its_run(make, process_config, records, tmp_path):
    make().run()
    process_config["train"]["steps"] = 15
    make().run()

    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["greyjacket"]
    later = [record for record in records() if record["session"] == 2]
    assert [record["global_step"] for record in later if record["event"] == "step"] == list(range(10, 15))
    starts = [record for record in later if record["event"] == "start"]
    assert starts[-1]["resumed_from_step"] == 10
    states = [(r["session"], r["at"], r["global_step"], r["batch_size"]) for r in records("state")]
    assert states[0] == (1, "start", 0, 2)
    assert (2, "load", 10, 2) in states
    assert {at for _, at, *_ in states} == {"start", "save", "load"}
    assert (
        "checkpoint_load"
        in [record for record in later if record["event"] == "span_summary"][-1]["span_times"]
    )


def test_a_new_training_gets_a_new_run(make, records, tmp_path):
    make().run()
    for weights in (tmp_path / "output" / "greyjacket").glob("*.safetensors"):
        weights.unlink()
    make().run()

    assert len(list((tmp_path / "logs").iterdir())) == 2
    assert {record["session"] for record in records()} == {1}


@pytest.mark.parametrize("name", ["t", "telemetry"])
def test_no_file_of_ours_is_taken_for_weights_to_go_on_from(name, make, config, process_config, tmp_path):
    config["config"]["name"] = name
    make().run()
    process_config["train"]["steps"] = 15
    process = make()
    process.run()

    assert process.start_step == 10
    assert len(read_records(tmp_path / "logs" / name / "metrics.jsonl", "end")) == 2


# Which files are whose.


def test_weights_are_known_by_their_names_those_of_the_job_first(tmp_path):
    weights = ["a.safetensors", "a_000000250.pt", "a_000000250_low.safetensors", "word_000000250.pt"]
    for name in (*weights, "optimizer.pt", "a_000000250.yaml", "learnable_snr.json", "b.safetensors"):
        (tmp_path / name).touch()
    for name in ("a_000000500", "samples"):
        (tmp_path / name).mkdir()
    (tmp_path / "a_latest.pt").symlink_to("nowhere")

    found = weights_in(tmp_path, ["a", "word"])
    assert [path.name for path in found] == [*weights[:2], "a_000000500", *weights[2:]]
    # Saved into the same folder again.
    os.utime(tmp_path / "a_000000500", ns=(1, 1))
    earlier = weights_in(tmp_path, ["a"])
    (tmp_path / "a_000000500" / "part.pt").touch()
    os.utime(tmp_path / "a_000000500", ns=(1, 1))
    again = weights_in(tmp_path, ["a"])
    assert [path.name for path in again if again[path] != earlier[path]] == ["a_000000500"]


def untouched(stand_in, config, tmp_path):
    """Return the weights that the job ends with where nothing is attached."""
    fresh = json.loads(json.dumps(config))
    process = fresh["config"]["process"][0]
    process["training_folder"] = str(tmp_path / "untouched")
    process["telemetry"] = False
    trainer = stand_in.SDTrainer(0, stand_in.Job(fresh), process)
    trainer.run()
    return trainer.trained


def test_another_rank_trains_and_writes_nothing(
    make, stand_in, config, process_config, monkeypatch, tmp_path, caplog
):
    watched = []
    process_config["on_step"] = lambda process: watched.append(
        {"save", "end_step_hook"} & vars(process).keys()
    )
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    process = make()
    process.run()

    # It does what is asked of all; the weights are the first one's.
    assert watched == [{"end_step_hook"}] * 10
    del process_config["on_step"]
    assert process.trained == untouched(stand_in, config, tmp_path)
    assert not (tmp_path / "logs").exists()
    assert caplog.text == ""
