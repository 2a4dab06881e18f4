"""A wrong configuration is named by its full key, its value and what is allowed; nothing of it is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.trainer.command import main
from toolkit.telemetry.trainer.config import parse_job, read_config_file

EXAMPLES = Path(__file__).parents[2] / "config" / "examples"

WRONG_VALUES = [
    # where, the value there, what the message says
    (
        "train.stepz",
        5,
        ["train.stepz (with the value 5) is not an option", "did you mean 'steps'?", "Known: batch"],
    ),
    ("train.steps", 2.5, ["train.steps is 2.5; it must be a whole number of 1 or more"]),
    ("train.lr", float("nan"), ["train.lr is nan; it must be a number above 0 and at most 1"]),
    (
        "train.lr_scheduler",
        "cosin",
        ["must be one of 'constant', 'cosine'", "did you mean 'cosine'?"],
    ),
    ("train.batch_size", 9, ["train.batch_size is 9; it must be at most 8", "images in datasets"]),
    ("sample.walk_seed", "no", ["sample.walk_seed is 'no'; it must be true or false"]),
    ("train", [1], ["config.process[0].train is [1]; it must be a mapping"]),
    ("train", None, ["config.process[0].train.steps is required; it must be a whole number of 1 or more"]),
    ("network.network_kwargs.only_if_contains", "attn", ["only_if_contains is 'attn'; it must be a list"]),
    ("network.network_kwargs.only_if_contains", [3], ["only_if_contains[0] is 3; it must be a text"]),
    ("sample.prompts", ["a red cirlce"], ["sample.prompts[0]", "unknown word 'cirlce'", "circle"]),
    (
        "datasets",
        [{"style": "neo"}],
        ["datasets[0].style is 'neo'; it must be one of", "did you mean 'neon'?"],
    ),
    ("datasets", [], ["datasets is []; it must be a list of at least one"]),
    ("device", "gpu", ["config.process[0].device is 'gpu'; it must be auto, cpu, mps, cuda or cuda:N"]),
    ("trigger_word", "red", ["trigger_word is 'red'; it must be one word that the model does not know"]),
    (
        "type",
        "tiny_trainer",
        ["config.process[0].type is 'tiny_trainer'; it must be one of tiny_lora_trainer"],
    ),
    ("telemetry.log_evry", 5, ["log_evry"]),
]


def change(process, key, value):
    *parents, last = key.split(".")
    for parent in parents:
        process = process.setdefault(parent, {})
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
    assert all(part in message for part in said), message
    assert len(message.splitlines()) <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "config.name is None; it must be"),
        ({"job": "train", "config": {"name": "x"}}, "job is 'train'; it must be extension"),
        (
            {"job": "extension", "config": {"name": "x"}},
            "config.process is None; it must be a list of one mapping",
        ),
        (
            {"job": "extension", "config": {"name": "x", "process": [{}]}},
            "config.process[0].type is None; it must be",
        ),
        ([1, 2], "is not a mapping"),
    ],
)
def test_a_file_that_is_no_job_says_what_is_missing(content, said, tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(content))

    assert main([str(path)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", ".hidden", "", "x" * 101, 7])
def test_a_name_that_cannot_be_a_folder_is_refused(name, mapping, train, capsys):
    mapping["config"]["name"] = name

    assert train() == 2
    assert "config.name" in capsys.readouterr().err


def test_an_unknown_key_beside_the_process_is_refused(mapping):
    mapping["config"]["proces"] = 1

    with pytest.raises(
        OptionsError, match=r"config.proces \(with the value 1\) is not an option; did you mean 'process'"
    ):
        parse_job(mapping)


def test_a_file_that_is_not_there_or_not_yaml_is_refused_in_one_line(tmp_path, capsys):
    broken, twice = tmp_path / "broken.yaml", tmp_path / "twice.yaml"
    twice.write_text(
        "job: extension\ntelemetry: {log_every: 5}\na: &a {b: 1}\nc: {d: &d {<<: *a, b: 2}}\n"
        "e: {<<: *d}\ntelemetry: {}\n"
    )
    broken.write_text("job: extension\nconfig: {name: [}\n")

    assert main([str(tmp_path / "none.yaml")]) == 2
    assert main([str(broken)]) == 2
    assert main([str(twice)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "none.yaml: cannot be read: No such file" in lines[0]
    assert "broken.yaml: line 2: invalid YAML" in lines[1]
    assert "twice.yaml: line 6: invalid YAML: the key 'telemetry' is in line 2 already" in lines[2]


def test_environment_variables_are_filled_in_before_parsing(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPS", "12")
    path = tmp_path / "job.yaml"
    path.write_text("config: {name: n}\nsteps: ${STEPS}\n")

    assert read_config_file(path)["steps"] == 12
    monkeypatch.delenv("STEPS")
    with pytest.raises(OptionsError, match=r"line 2: the environment variable STEPS is not set"):
        read_config_file(path)


def test_the_placeholder_name_becomes_the_jobs_name_or_the_given_one(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text('config: {name: "[name]"}\nmeta: {name: "[name] v1"}\n')

    given = read_config_file(path, name="mine")
    assert given["config"]["name"] == "mine"
    assert given["meta"]["name"] == "mine v1"
    with pytest.raises(OptionsError, match="--name"):
        read_config_file(path)


def test_json_says_the_same_as_yaml(tmp_path, mapping, write):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(mapping))

    assert parse_job(read_config_file(path)) == parse_job(read_config_file(write()))


def test_a_number_without_a_dot_before_its_exponent_is_a_number(process, mapping):
    process["train"]["lr"] = "1e-4"  # what YAML 1.1 makes of 1e-4

    assert parse_job(mapping).process.train.lr == 1e-4


def test_the_telemetry_block_may_be_in_any_of_three_places(process, mapping):
    block = process.pop("telemetry")

    for place in (mapping, mapping["config"]):
        place["telemetry"] = block
        parse_job(mapping)
        del place["telemetry"]


def test_the_tiny_example_is_a_valid_job():
    job = parse_job(read_config_file(EXAMPLES / "train_lora_tiny_cpu_with_telemetry.yaml"))

    assert job.process.train.steps == 500
    assert job.mapping["meta"]["name"] == job.name


@pytest.mark.parametrize("checkout", [False, True])
def test_the_flux_example_asks_for_an_ai_toolkit_checkout(checkout, tmp_path, monkeypatch, capsys):
    if checkout:
        (tmp_path / "jobs").mkdir()
        (tmp_path / "toolkit").mkdir()
        (tmp_path / "toolkit" / "job.py").touch()
    monkeypatch.chdir(tmp_path)

    assert main([str(EXAMPLES / "train_lora_flux_24gb_with_telemetry.yaml")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "ai-toolkit" in lines[0]
    assert ("python" if checkout else "git clone https://github.com/ostris/ai-toolkit") in lines[1]
