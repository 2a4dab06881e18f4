"""The start record says what is trained and how, whoever says it and in whatever form, and gives no secret away."""

import dataclasses
import json
import threading

import pytest
import yaml

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S, make_logger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine import environment
from toolkit.telemetry.logger.machine.start_fields import lora_fields, training_fields
from toolkit.telemetry.logger.machine.start_look import look_at_machine
from toolkit.telemetry.logger.options import find_process
from toolkit.telemetry.logger.session.start_record import samples_per_step, start_fields

CONFIG = yaml.safe_load(
    """
    job: extension
    config:
      name: greyjacket
      process:
        - type: sd_trainer
          network:
            type: lora
            linear: 16
            linear_alpha: 8
            conv: 4
            conv_alpha: 2
            dropout: 0.1
            network_kwargs:
              only_if_contains: [attn.to_q, attn.to_k]
              ignore_if_contains: [norm]
          train:
            batch_size: 2
            steps: 2000
            gradient_accumulation_steps: 4
            optimizer: adamw8bit
            lr: 1.0e-4
            lr_scheduler: cosine
            lr_scheduler_params: {num_warmup_steps: 100}
            gradient_checkpointing: true
            noise_scheduler: flowmatch
            dtype: bf16
          model:
            name_or_path: black-forest-labs/FLUX.1-dev
            is_flux: true
            quantize: true
            low_vram: false
    """
)
PROCESS = CONFIG["config"]["process"][0]


def fields(**given):
    return start_fields(
        **{"run_name": "r", "config": None, "lora": None, "model": None, "training": None, **given}
    )


@pytest.mark.parametrize("config", [CONFIG, CONFIG["config"], PROCESS], ids=["file", "config", "process"])
def test_lora_training_and_model_of_a_configuration_are_described(config):
    assert fields(config=config) == {
        "run_name": "r",
        "config": config,
        "lora_type": "lora",
        "lora_rank": 16,
        "lora_alpha": 8,
        "lora_conv_rank": 4,
        "lora_conv_alpha": 2,
        "lora_dropout": 0.1,
        "lora_target_modules": ["attn.to_q", "attn.to_k"],
        "lora_ignore_modules": ["norm"],
        "batch_size": 2,
        "gradient_accumulation_steps": 4,
        "effective_batch_size": 8,
        "learning_rate": 1e-4,
        "optimizer": "adamw8bit",
        "scheduler": "cosine",
        "warmup_steps": 100,
        "max_steps": 2000,
        "dtype": "bf16",
        "gradient_checkpointing": True,
        "noise_scheduler": "flowmatch",
        "model_name_or_path": "black-forest-labs/FLUX.1-dev",
        "is_flux": True,
        "quantize": True,
        "low_vram": False,
    }


def test_of_several_processes_the_one_with_a_telemetry_block_is_meant():
    caption, train, logged = {"type": "caption"}, {"train": {}}, {"train": {}, "telemetry": {"enabled": True}}

    assert find_process({"config": {"process": [caption, train, logged]}}) is logged
    assert find_process({"config": {"process": [caption, train]}}) is train
    assert find_process({"config": {"process": [caption]}}) is caption


def test_a_peft_configuration_is_described_in_the_same_words():
    peft = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": ["q_proj"]}

    assert lora_fields(peft) == {
        "lora_type": "LORA",
        "lora_rank": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "lora_target_modules": ["q_proj"],
    }


def test_what_is_not_stated_is_absent_rather_than_guessed():
    train = {"lr": None, "batch_size": "auto", "gradient_accumulation": 2}

    assert fields(config={"train": {}}) == {"run_name": "r", "config": {"train": {}}}
    assert training_fields({"train": train}) == {"batch_size": "auto", "gradient_accumulation_steps": 2}


def test_what_the_caller_says_wins_over_the_configuration():
    found = fields(
        config=CONFIG, lora={"rank": 4}, training={"optimizer": "sgd"}, model={"name_or_path": "mine"}
    )

    assert (found["lora_rank"], found["lora_alpha"]) == (4, 8)
    assert (found["optimizer"], found["batch_size"]) == ("sgd", 2)
    assert found["model_name_or_path"] == "mine"


def test_names_get_their_prefix_once():
    found = fields(lora={"rank": 4, "lora_alpha": 8}, model={"model_dtype": "bf16", "parameters": 12})

    assert found == {
        "run_name": "r",
        "lora_rank": 4,
        "lora_alpha": 8,
        "model_dtype": "bf16",
        "model_parameters": 12,
    }


@dataclasses.dataclass
class LoraSettings:
    r: int = 16
    target_modules: tuple = ("q", "v")


def test_a_dataclass_says_the_same_as_a_mapping():
    found = fields(lora=LoraSettings(), training=LoraSettings())

    assert (found["lora_rank"], found["lora_target_modules"], found["r"]) == (16, ["q", "v"], 16)


@pytest.mark.parametrize(
    ("odd", "shown"),
    [(5, 5), ("text", "text"), (["a"], ["a"]), (object(), "<object>")],
)
def test_what_is_no_mapping_is_kept_for_what_it_is_worth(odd, shown):
    found = fields(config=odd, lora=odd, model=odd, training=odd)

    assert (found["config"], found["lora"], found["model"], found["training"]) == (shown, shown, shown, shown)


@pytest.mark.parametrize(
    ("given", "samples"),
    [
        ({"batch_size": 4}, 4),
        ({"batch_size": 4, "gradient_accumulation_steps": 8}, 32),
        ({"batch_size": 4, "gradient_accumulation_steps": 8, "effective_batch_size": 64}, 64),
        ({}, None),
        ({"gradient_accumulation_steps": 8}, None),
        ({"batch_size": 0}, None),
        ({"batch_size": -4}, None),
        ({"batch_size": True}, None),
        ({"batch_size": "4"}, None),
        ({"batch_size": float("nan")}, None),
        ({"batch_size": float("inf")}, None),
        ({"batch_size": 10**400}, None),
        ({"batch_size": 4, "gradient_accumulation_steps": None}, None),
    ],
    ids=lambda given: str(given)[:60] if not isinstance(given, dict) or "e" in str(given) else "huge",
)
def test_samples_of_a_step_are_counted_where_they_can_be(given, samples):
    assert samples_per_step(given) == samples


def test_a_script_that_is_over_before_its_machine_is_described_has_it_in_its_records(monkeypatch, tmp_path):
    may_answer = threading.Event()

    monkeypatch.setattr(environment, "_PARTS", {"host": lambda: may_answer.wait(100) and "here"})
    with make_logger(tmp_path) as log:
        log.log_step(0, train_loss=1.0)
        may_answer.set()
    events = [record["event"] for record in read_records(log.run_folder)]

    assert events == ["start", "step", "environment", "end"]


def test_a_machine_that_cannot_be_described_is_counted(monkeypatch):
    def fail(guard, found):
        raise RuntimeError("no")

    monkeypatch.setattr(environment, "describe_environment", fail)
    guard = Guard()
    look = look_at_machine(guard)
    look.start()

    assert look.is_done(PATIENCE_S)
    assert look.result() == {}
    assert guard.counts == {"describing the machine: RuntimeError": 1}


def test_the_job_of_a_scheduler_is_in_the_start_record_and_can_be_searched_for(tmp_path, monkeypatch, capsys):
    given = {
        "SLURM_JOB_ID": "4713",
        "SLURM_ARRAY_JOB_ID": "4711",
        "SLURM_ARRAY_TASK_ID": "2",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_JOB_START_TIME": "1763400000",
        "SLURM_JOB_END_TIME": "1763486400",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with make_logger(tmp_path, csv=True) as log:
        log.log_step(1, train_loss=1.0)

    (start,) = [record for record in read_records(log.run_folder) if record["event"] == "start"]
    assert {name: value for name, value in start.items() if name.startswith("job_")} == {
        "job_id": "4713",
        "job_array_id": "4711",
        "job_array_task": 2,
        "job_restarts": 1,
        "job_start_time": 1763400000,
        "job_end_time": 1763486400,
    }
    assert "job_" not in (log.run_folder / "metrics.csv").read_text()
    capsys.readouterr()
    for search, found in (("job_id=4713", ["r"]), ("job_array_id=4711", ["r"]), ("job_id=4711", [])):
        assert main(["ls", str(tmp_path), "--json", "--filter", search]) == 0
        assert [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]] == found


def test_variables_of_a_job_that_are_no_numbers_are_kept_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "")
    monkeypatch.setenv("TELEMETRY_JOB_ID", "train-7f9c4")
    monkeypatch.setenv("TELEMETRY_JOB_END_TIME", "UNLIMITED")
    with make_logger(tmp_path, csv=True) as log:
        log.log_step(1, train_loss=1.0)

    start = read_records(log.run_folder)[0]
    assert (start["job_id"], start["x_job_end_time"]) == ("train-7f9c4", "UNLIMITED")
    assert "job_end_time" not in start
