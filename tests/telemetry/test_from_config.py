"""A logger made from a training YAML logs that run under its name, or does nothing at all, cheaply."""

import os
import threading

import pytest
import yaml

from tests.records import read_records
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.guard import MisuseError
from toolkit.telemetry.logger.options import OptionsError, options_from_config

TRAINING = """
job: extension
config:
  name: "grey jacket"
  process:
    - type: sd_trainer
      network: {type: lora, linear: 16, linear_alpha: 8}
      train: {batch_size: 2, gradient_accumulation_steps: 4, steps: 100, lr: 1e-4, optimizer: adamw8bit, dtype: bf16}
      model: {name_or_path: black-forest-labs/FLUX.1-dev, is_flux: true, quantize: true}
      telemetry:
        enabled: true
        log_every: 5
        close_timeout: 60
"""


@pytest.fixture
def training(tmp_path):
    training = yaml.safe_load(TRAINING)
    training["config"]["process"][0]["telemetry"]["log_dir"] = str(tmp_path / "logs")
    return training


def test_a_training_yaml_is_all_that_is_needed(training, tmp_path, capsys):
    with TelemetryLogger.from_config(training, system=False) as log:
        for step in range(11):
            log.log_step(step, train_loss=0.5)

    assert log.run_folder == tmp_path / "logs" / "grey-jacket"
    assert capsys.readouterr().out == (
        "[telemetry] run_name=grey jacket folder=grey-jacket\n"
        f"[telemetry] Logging to {tmp_path}/logs/grey-jacket/metrics.jsonl (and metrics.csv)\n"
    )
    found = read_records(log.run_folder)
    assert [record["global_step"] for record in found if record["event"] == "step"] == [0, 5, 10]


def test_a_logger_that_is_off_makes_nothing_and_starts_nothing(training, tmp_path, capsys):
    training["config"]["process"][0]["telemetry"]["enabled"] = False
    threads = set(threading.enumerate())
    log = TelemetryLogger.from_config(training)
    with log:
        log.log_start(config=training)
        log.declare_action("save")
        log.declare_knob("lr_scale", float, low=0.1, high=2.0)
        for step in range(100):
            log.log_step(step, train_loss=float("nan"), anything=object())
        log.log_eval(1, val_loss=0.5)
        log.log_epoch(1)
        log.log_checkpoint(1, "x")
        log.log_sample(1, "x", prompt="p")
        log.log_event("e")
        log.log({"train_loss": 1.0})
        log.log_image("i", object())
        log.log_table("t", [[1]])
        log.log_histogram("h", [1.0])
        log.summary["best"] = 1.0
        log.flush()
        log.sync()

    assert os.listdir(tmp_path) == []
    # Those of earlier tests may end meanwhile.
    assert set(threading.enumerate()) <= threads
    assert capsys.readouterr().out == ""
    assert (log.run_folder, log.run_id, log.should_stop, log.take_requests()) == (None, None, False, [])
    assert (log.log_every, log.is_live, log.guard.counts) == (5, False, {})


@pytest.mark.parametrize("config", [{}, {"telemetry": {"enabled": True, "system": False}}])
def test_a_run_without_a_name_is_named_after_the_time(tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    with TelemetryLogger.from_config(config) as log, TelemetryLogger(None, enabled=False) as other:
        pass

    assert log.run_name.startswith("run-20")
    assert other.run_name.startswith("run-20")


BLOCK = {"enabled": True, "log_every": 7, "system": False}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"telemtry": {"log_every": 5, "projct": "x"}},
            "'telemtry' at the top level is not the block `telemetry:`",
        ),
        (
            {"enabled": True, "log_every": 5, "lr": 0.1},
            "enabled, log_every at the top level belong into a block",
        ),
        ({"config": {"TELEMETRY": BLOCK}}, "'TELEMETRY' at config is not the block"),
        ({"telemetry_": True}, "'telemetry_' at the top level is not the block"),
        (
            {"config": {"process": [{"train": {"telemetry": BLOCK}}]}},
            "train.telemetry at config.process[0] belongs to the top level",
        ),
        ({"telemetry": None, **BLOCK}, "telemetry at the top level is empty; indent the options after it"),
    ],
)
def test_a_yaml_that_seems_to_want_telemetry_and_has_no_block_is_said(caplog, config, sentence):
    with TelemetryLogger.from_config(config) as log:
        assert not log.is_live

    assert "nothing is logged: " in caplog.text
    assert sentence in caplog.text


def test_paths_may_have_variables_and_a_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    block = {"log_dir": "$HOME/logs", "tensorboard_dir": "~/events", "one_logger_file": "${HOME}/one.jsonl"}
    options = options_from_config({"telemetry": block})

    assert options.log_dir == f"{tmp_path}/logs"
    assert options.tensorboard_dir == f"{tmp_path}/events"
    assert options.one_logger_file == f"{tmp_path}/one.jsonl"
    for unset in ("$NO_SUCH_VARIABLE/logs", "~no_such_user/logs"):
        with pytest.raises(OptionsError, match="telemetry.log_dir"):
            options_from_config({"telemetry": {"log_dir": unset}})


def test_of_blocks_in_two_places_the_inner_one_counts_and_that_is_said(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    config = {"config": {"telemetry": BLOCK}, "telemetry": {}}
    sentence = "telemetry is also at the top level: the block at config counts alone"
    with TelemetryLogger.from_config(config) as log:
        log.log_step(7, train_loss=0.5)

    assert log.log_every == 7
    assert caplog.text.count(sentence) == 1
    assert [sentence in found["message"] for found in read_records(log.run_folder, "finding")] == [True]
    with pytest.raises(MisuseError, match="counts alone"):
        TelemetryLogger.from_config(config, strict=True)


@pytest.mark.parametrize(
    "config",
    [
        {"telemetry": None, "enabled": False},
        {"Telemetry": False},
        {"telemetry_off": BLOCK},
        {"hub": {"telemetry": {"endpoint": "x"}}},
        {"hub": {"telemetry": True}},
        {"telemeter": 3},
    ],
)
def test_a_block_that_is_off_or_not_ours_logs_nothing(tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)

    assert not TelemetryLogger.from_config(config).is_live
