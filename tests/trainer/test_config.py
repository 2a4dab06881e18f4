"""A wrong configuration is named by its full key, its value and what is allowed; nothing of it is trained."""

from __future__ import annotations

import json

import pytest

from tests.trainer.conftest import EXAMPLE
from toolkit.telemetry.importers.training_yaml import read_training_yaml
from toolkit.telemetry.trainer.command import main
from toolkit.telemetry.trainer.options import parse_job

WRONG_VALUES = [
    # where, the value there, what the message says
    (
        "train.stepz",
        5,
        ["train.stepz (with the value 5) is not an option", "did you mean 'steps'?", "Known: batch"],
    ),
    ("train.steps", 2.5, ["config.process[0].train.steps is 2.5; it must be a whole number of 1 or more"]),
    ("train.lr", float("nan"), ["train.lr is nan; it must be a number above 0 and at most 1"]),
    ("train.lr_scheduler", "cosin", ["must be one of 'constant', 'cosine'", "did you mean 'cosine'?"]),
    ("train.batch_size", 9, ["train.batch_size is 9; it must be at most 8, the number of images"]),
    ("train", [1], ["config.process[0].train is [1]; it must be a mapping"]),
    ("train", None, ["config.process[0].train.steps is required; it must be a whole number of 1 or more"]),
    ("sample.prompts", ["a red cirlce"], ["sample.prompts[0]", "unknown word 'cirlce'", "circle"]),
    ("device", "gpu", ["config.process[0].device is 'gpu'; it must be auto, cpu, mps, cuda or cuda:N"]),
    ("trigger_word", "two words", ["trigger_word is 'two words'; it must be one word"]),
    (
        "type",
        "sd_trainer",
        ["config.process[0].type is 'sd_trainer'", "tiny_lora_trainer", "ai-toolkit attach"],
    ),
    ("telemetry.log_evry", 5, ["log_evry"]),
]


def change(process, key, value):
    *parents, last = key.split(".")
    for parent in parents:
        process = process[parent]
    process[last] = value


@pytest.mark.parametrize(
    ("key", "value", "said"), WRONG_VALUES, ids=[f"{row[0]}={row[1]}" for row in WRONG_VALUES]
)
def test_a_wrong_value_is_named_with_its_key_and_what_is_allowed(
    key, value, said, process, train, tmp_path, capsys
):
    change(process, key, value)

    assert train() == 2
    message = capsys.readouterr().err
    assert message.startswith(f"run.py: {tmp_path / 'config.yaml'}: ")
    assert all(part in message for part in said), message
    assert len(message.splitlines()) <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "job is required; it must be 'extension'"),
        ("{job: extension, conf: 1}", "conf (with the value 1) is not an option; did you mean 'config'?"),
        ("{job: extension, config: {name: x}}", "config.process is required; it must be a list of one"),
        ("{job: extension, config: {name: x, process: [{}]}}", "config.process[0].type is None; it must be"),
        ("{job: extension, config: {name: a/b, process: []}}", "config.name is 'a/b'; it must be a text of"),
        ("[1, 2]", "is not a mapping"),
        ("job: extension\nconfig: {name: [}\n", "line 2: invalid YAML"),
        ("job: extension\na: {}\njob: x\n", "line 3: invalid YAML: the key 'job' is in line 1 already"),
        ("a: 1\nsteps: ${STEPS}", "line 2: the environment variable STEPS is not set"),
    ],
)
def test_a_file_that_is_no_job_says_what_is_missing(content, said, tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(content)

    assert main([str(path)]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert len(message.splitlines()) == 1


def test_a_file_that_is_missing_is_refused_in_one_line(tmp_path, capsys):
    assert main([str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: cannot be read: No such file" in capsys.readouterr().err


def test_environment_variables_are_filled_in_before_parsing(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPS", "12")
    path = tmp_path / "job.yaml"
    path.write_text("config: {name: n}\nsteps: ${STEPS}\n")

    assert read_training_yaml(path)["steps"] == 12


def test_json_says_the_same_as_yaml(tmp_path, mapping, write):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(mapping))

    assert parse_job(read_training_yaml(path)) == parse_job(read_training_yaml(write()))


def test_a_number_without_a_dot_before_its_exponent_is_a_number(process, mapping):
    process["train"]["lr"] = "1e-4"  # what YAML 1.1 makes of 1e-4

    assert parse_job(mapping).process.train.lr == 1e-4


def test_the_telemetry_block_may_be_in_any_of_three_places(process, mapping):
    block = process.pop("telemetry")

    for place in (mapping, mapping["config"]):
        place["telemetry"] = block
        parse_job(mapping)
        del place["telemetry"]


def test_the_example_is_a_valid_job():
    assert parse_job(read_training_yaml(EXAMPLE)).process.train.steps == 500
