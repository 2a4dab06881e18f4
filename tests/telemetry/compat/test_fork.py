"""Code written for ai-toolkit's telemetry fork keeps working."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import time

import pytest

import toolkit.telemetry
from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S
from toolkit.telemetry import OptionsError
from toolkit.telemetry import TelemetryLogger as Logger
from toolkit.telemetry.compat.fork import (
    TelemetryLogger,
    extract_lora_metadata,
    extract_model_info,
    extract_training_info,
    get_run_name,
)
from toolkit.telemetry.logger import logger as logger_module
from toolkit.telemetry.logger.machine.checkpoint_files import look_at

CONFIG = {
    "name": "greyjacket",
    "network": {
        "type": "lora",
        "linear": 16,
        "linear_alpha": 8,
        "network_kwargs": {"only_if_contains": ["a"]},
    },
    "model": {"name_or_path": "flux", "is_flux": True, "quantize": True},
    "train": {
        "batch_size": 2,
        "gradient_accumulation_steps": 3,
        "lr": 1e-3,
        "steps": 20,
        "lr_scheduler": "cosine",
    },
}

QUIET = {"system": False, "close_timeout": PATIENCE_S}

SIGNATURES = {
    "__init__": ["run_name", "log_dir", "enable_tensorboard", "enable_wandb"],
    "log_start": ["config", "lora_config", "model_info", "training_info"],
    "log_step": ["global_step", "epoch", "metrics"],
    "log_epoch": ["epoch", "metrics"],
    "log_checkpoint": ["global_step", "checkpoint_path", "is_best"],
    "log_eval": ["global_step", "metrics"],
    "log_control_change": ["old_value", "new_value", "source"],
    "check_control_file": [],
    "close": [],
}


def test_every_call_takes_what_the_forks_takes():
    for name, parameters in SIGNATURES.items():
        ours = list(inspect.signature(getattr(TelemetryLogger, name)).parameters)

        assert ours[1 : len(parameters) + 1] == parameters


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A training loop as the fork's users wrote it; the records of its folder."""
    folder = tmp_path_factory.mktemp("fork")
    weights = folder / "greyjacket.safetensors"
    weights.write_bytes(b"weights")
    telemetry = TelemetryLogger(get_run_name(CONFIG), folder, close_timeout=PATIENCE_S)
    telemetry.log_start(
        CONFIG,
        extract_lora_metadata(CONFIG["network"]),
        extract_model_info(CONFIG["model"]),
        extract_training_info(CONFIG["train"]),
    )
    for step in range(1, 21):
        control = telemetry.check_control_file()
        assert control is None
        loss = math.nan if step == 13 else 1.0 / step
        telemetry.log_step(
            step, step // 10, {"train_loss": loss, "lr": 1e-3, "grad_norm": None, "loss/mse": loss}
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logger_module, "look_at", lambda path, _, guard: look_at(path, PATIENCE_S, guard))
        telemetry.log_checkpoint(20, str(weights), is_best=True)
    telemetry.log_eval(20, {"val_loss": 0.25, "clip": 0.5})
    telemetry.log_epoch(2, {"train_loss": 0.05})
    telemetry.log_control_change({"log_every": 10}, {"log_every": 20})
    telemetry.close()
    telemetry.close()
    telemetry.log_step(21, 2, {"train_loss": 1.0})
    assert telemetry.jsonl_path == folder / "greyjacket/metrics.jsonl"
    assert telemetry.csv_path.exists()
    return read_records(telemetry.jsonl_path)


def of(run, event):
    return [record for record in run if record["event"] == event]


def test_every_step_is_kept_with_its_epoch_and_metrics(run):
    steps = of(run, "step")

    assert [(step["global_step"], step["epoch"]) for step in steps] == [(n, n // 10) for n in range(1, 21)]
    assert steps[3]["train_loss"] == steps[3]["loss/mse"] == 0.25
    assert [step["global_step"] for step in steps if step["nan_inf_detected"]] == [13]
    assert steps[12]["non_finite"] == {"train_loss": "NaN", "loss/mse": "NaN"}


def test_the_start_has_the_forks_names(run):
    (start,) = of(run, "start")

    assert (start["lora_rank"], start["lora_alpha"], start["lora_target_modules"]) == (16, 8, ["a"])
    assert (start["model_name_or_path"], start["is_flux"], start["quantize"]) == ("flux", True, True)
    assert (start["batch_size"], start["effective_batch_size"], start["max_steps"]) == (2, 6, 20)
    assert start["config"]["name"] == "greyjacket"


def test_everything_else_is_kept_too(run):
    (checkpoint,) = of(run, "checkpoint")
    (evaluation,) = of(run, "eval")
    (epoch,) = of(run, "epoch")
    (change,) = of(run, "control_change")

    assert (checkpoint["global_step"], checkpoint["bytes"], checkpoint["is_best"]) == (20, 7, True)
    assert (evaluation["eval/val_loss"], evaluation["eval/clip"], evaluation["val_loss"]) == (0.25, 0.5, 0.25)
    assert (epoch["epoch"], epoch["train_loss"]) == (2, 0.05)
    assert (change["old/log_every"], change["new/log_every"], change["source"]) == (10, 20, "dashboard")
    assert of(run, "end")[0]["status"] == "finished"


def test_a_second_start_resumes_in_the_same_folder(tmp_path):
    for first in (1, 3):
        telemetry = TelemetryLogger("again", str(tmp_path), **QUIET)
        for step in (first, first + 1):
            telemetry.log_step(step, 0, {"train_loss": 1.0})
        telemetry.close()
    steps = read_records(tmp_path / "again/metrics.jsonl", "step")

    assert [(step["global_step"], step["session"]) for step in steps] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert (tmp_path / "again/metrics.csv").read_text().count("step") >= 4


def ask(telemetry, **request):
    """Write a request, log steps until it comes, and return it."""
    new = telemetry.run_log_dir / ".asked"
    new.write_text(json.dumps({**request, "timestamp": time.time()}))
    os.replace(new, telemetry.control_path)
    step, control, deadline = 1, None, time.monotonic() + PATIENCE_S
    while control is None and time.monotonic() < deadline:
        step += 1
        telemetry.log_step(step, 0, {"train_loss": 1.0})
        control = telemetry.check_control_file()
        time.sleep(0.02)
    return control


def test_a_request_is_handed_out_once_and_answered_once(tmp_path):
    telemetry = TelemetryLogger("asked", tmp_path, **QUIET)
    telemetry.telemetry.declare_action("save")
    telemetry.log_step(1, 0, {"train_loss": 1.0})
    control = ask(telemetry, log_every=50, actions=["save"])
    telemetry.log_control_change({"log_every": 1}, {"log_every": control["log_every"]}, source="dashboard")
    assert telemetry.check_control_file() is None
    telemetry.close()
    answers = read_records(tmp_path / "asked/metrics.jsonl", "control_change")

    assert (control["log_every"], control["actions"]) == (50, ["save"])
    assert [answer["status"] for answer in answers] == ["applied"]


def test_a_change_of_the_scripts_own_is_not_taken_for_one_that_was_handed_out(tmp_path):
    telemetry = TelemetryLogger("own", tmp_path, **QUIET)
    control = ask(telemetry, log_every=50)
    # The script sees that it logs every 50 steps already and says nothing; later it changes that by itself.
    telemetry.log_control_change({"log_every": 50}, {"log_every": 25}, source="schedule")
    telemetry.close()
    changes = read_records(tmp_path / "own/metrics.jsonl", "control_change")

    assert control["log_every"] == 50
    assert [change.get("source") for change in changes].count("schedule") == 1


def test_values_that_make_no_sense_do_not_reach_the_loop(tmp_path):
    telemetry = TelemetryLogger("odd", tmp_path, **QUIET)
    telemetry.log_start(None, None, None, None)
    telemetry.log_step(1, 0, "no mapping")
    telemetry.log_step(2, 0, None)
    telemetry.log_step(3, 0, {"global_step": 9, "epoch": 5, 7: 1.0})
    telemetry.log_checkpoint(3, None)
    telemetry.log_eval(3, 7)
    telemetry.close()
    steps = read_records(tmp_path / "odd/metrics.jsonl", "step")

    assert [step["global_step"] for step in steps] == [2, 3]
    assert (steps[1]["epoch"], steps[1]["7"]) == (5, 1.0)


def test_names_come_from_the_configuration_or_the_time():
    assert get_run_name({"config": {"name": "inner"}, "name": "outer"}) == "inner"
    assert get_run_name({"name": "outer"}) == "outer"
    assert get_run_name({}).startswith("run-2")


def test_only_what_a_configuration_states_is_said():
    assert extract_lora_metadata(None) == {}
    assert extract_lora_metadata({"rank": 8, "dropout": 0.1}) == {"lora_rank": 8, "lora_dropout": 0.1}
    assert extract_training_info({}) == {}
    assert extract_training_info({"scheduler": "linear", "steps": 5}) == {
        "scheduler": "linear",
        "max_steps": 5,
    }
    assert extract_model_info({"is_xl": True}) == {"is_sdxl": True}


def test_a_configuration_may_be_an_object_and_never_raises():
    class NetworkConfig:
        def __init__(self):
            self.linear, self.linear_alpha = 32, 16

    assert extract_lora_metadata(NetworkConfig())["lora_rank"] == 32
    assert extract_lora_metadata(7) == {}
    assert extract_training_info("x") == {}
    assert extract_model_info(None) == {}
    assert get_run_name(None).startswith("run-2")


def test_the_parameters_of_a_network_are_counted():
    torch = pytest.importorskip("torch")

    class StableDiffusion:
        network = torch.nn.Linear(3, 2)

    StableDiffusion.network.bias.requires_grad_(False)
    info = extract_model_info({"name_or_path": "flux"}, StableDiffusion())

    assert (info["trainable_params"], info["total_params"]) == (6, 8)


# The logger of this package, called as the fork's is.


def test_the_helpers_are_where_the_fork_has_them():
    assert toolkit.telemetry.get_run_name is get_run_name
    for name in ("extract_lora_metadata", "extract_model_info", "extract_training_info"):
        assert getattr(toolkit.telemetry, name) is globals()[name]
    with pytest.raises(AttributeError, match="no attribute 'extract_nothing'"):
        _ = toolkit.telemetry.extract_nothing


def test_the_log_directory_may_come_second(tmp_path):
    for number, folder in enumerate((str(tmp_path), tmp_path)):
        with Logger(f"run{number}", folder, **QUIET) as log:
            log.log_step(1, 0.5)

        assert log.run_folder == tmp_path / f"run{number}"


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("./logs",), {"log_dir": "./other"}, "log_dir is given twice, as './logs' and './other'"),
        (({"log_every": 5},), {}, "second argument is of the type dict; it must be the log directory or"),
        ((5,), {}, "second argument is of the type int"),
    ],
)
def test_other_arguments_are_reported_in_one_line(tmp_path, monkeypatch, arguments, options, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionsError, match=re.escape(said)) as error:
        Logger("run", *arguments, **options)

    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "names", "kept"),
    [
        ((20, "model.safetensors"), {}, (20, "model.safetensors", False)),
        (
            (),
            {"global_step": 20, "checkpoint_path": "model.safetensors", "is_best": True},
            (20, "model.safetensors", True),
        ),
        ((), {"step": 20, "path": "model.safetensors"}, (20, "model.safetensors", False)),
        ((), {}, (None, None, False)),
    ],
)
def test_a_checkpoint_is_recorded_in_either_calling_convention(tmp_path, arguments, names, kept):
    with Logger("run", tmp_path, **QUIET) as log:
        log.log_checkpoint(*arguments, **names)
    (found,) = read_records(log.run_folder / "metrics.jsonl", "checkpoint")

    assert (found.get("global_step"), found.get("checkpoint_path"), found["is_best"]) == kept
    assert "step" not in found
    assert "path" not in found
