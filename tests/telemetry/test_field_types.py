"""One type a field over all records, whoever writes them; `read_records` looks at those of every other test here."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from tests.field_types import TYPE_OF, kind_of, wrong_types
from tests.golden import test_golden
from tests.records import read_records
from tests.telemetry.logged import make_logger, records_of
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.reader import read_from

EXAMPLES = sorted((Path(__file__).parents[2] / "config/examples").glob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_say_numbers_as_numbers(example, tmp_path):
    config = yaml.safe_load(example.read_text())
    log = TelemetryLogger.from_config(config, log_dir=tmp_path, system=False, csv=False)
    log.close()
    (start,) = read_records(log.run_folder / "metrics.jsonl", "start")

    assert type(start["learning_rate"]) is float
    assert type(start["max_steps"]) is int
    assert type(start["batch_size"]) is int


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"learning_rate": "2e-3"}, {"learning_rate": 0.002}),
        ({"learning_rate": "1e-4", "max_steps": "500"}, {"learning_rate": 0.0001, "max_steps": 500}),
        ({"batch_size": "auto"}, {"x_batch_size": "auto"}),
        ({"learning_rate": [1e-3, 1e-4]}, {"x_learning_rate": [1e-3, 1e-4]}),
        ({"seed": "nan"}, {"x_seed": "nan"}),
        ({"max_steps": True}, {"x_max_steps": True}),
        ({"seed": 10**400}, {"x_seed": "an integer of 1329 bits"}),
        ({"lora_target_modules": "all-linear"}, {"lora_target_modules": ["all-linear"]}),
    ],
)
@pytest.mark.parametrize("door", ["training", "fields"])
def test_a_start_has_numbers_where_numbers_belong(tmp_path, given, kept, door):
    log = make_logger(tmp_path)
    log.log_start(**({"training": given} if door == "training" else given))
    (start,) = records_of(log, "start")
    log.close()

    assert {name: start[name] for name in kept} == kept
    assert not {*given} - {*kept} & {*start}


def test_a_metric_of_more_than_64_bits_stays_a_number(tmp_path):
    log = make_logger(tmp_path, log_every=1, strict=True)
    log.log_step(1, train_loss=2**70, epoch=2**65, tokens=-(2**70), more=10**400)
    log.log_eval(1, count=2**70)
    log.log_event("made", id=2**70)
    (step,), (evaluated,), (event,) = (records_of(log, kind) for kind in ("step", "eval", "made"))
    log.close()

    assert [step[name] for name in ("train_loss", "epoch", "tokens")] == [2.0**70, 2.0**65, -(2.0**70)]
    assert (evaluated["count"], event["id"]) == (2.0**70, str(2**70))


def test_one_run_of_everything_has_one_type_a_field(tmp_path):
    log = make_logger(tmp_path, log_every=3, control=True, spans={"around": 2})
    with log.span("application", size=3):
        log.log_start(config={"a": [1]}, lora={"rank": 4}, model={"name": "m"}, training={"max_steps": "9"})
        for step in range(1, 10):
            with log.span("training_iteration"), log.span("forward", tokens=5):
                pass
            with pytest.raises(ValueError, match="bad"), log.span("encode"), log.capture_errors():
                raise ValueError("bad")
            log.log_step(
                step, train_loss=math.nan if step == 5 else 1.0 / step, lr=1e-3, grad_norm=float(step)
            )
        log.log_eval(9, val_loss=0.5)
        log.log_epoch(1, {"train_loss": 0.5}, global_step=9)
        log.log_checkpoint(9, tmp_path / "absent.safetensors", is_best=True, seconds=0.5)
        log.log_sample(9, "a.png", prompt="p")
        log.log_completion(9, prompt="p", completion="c", reward=0.5)
        log.log_completion(9, prompt="p", chosen="c", rejected="d", reward={"f": 0.5})
        log.log_event("mine", value=object())
        with log.span("sampling") as span:
            span.event("half way", done=0.5)
    log.close()
    found = read_records(log.run_folder / "metrics.jsonl")
    kinds = {}
    for record in found:
        for name, value in record.items():
            if kind_of(value) is not None:
                kinds.setdefault(name, set()).add(kind_of(value))

    assert {name: kinds for name, kinds in kinds.items() if len(kinds) > 1} == {}
    assert {record["event"] for record in found} >= {
        *("start", "step", "eval", "epoch", "checkpoint", "sample", "completion", "error", "finding"),
        *("span", "span_start", "span_event", "span_summary", "end"),
    }
    assert len(TYPE_OF.keys() & kinds.keys()) > 60


@pytest.mark.parametrize("folder", test_golden.FOLDERS, ids=lambda folder: folder.parent.name)
def test_folders_of_every_format_have_one_type_a_field(folder):
    assert wrong_types(read_from(folder / "metrics.jsonl").records) == []
