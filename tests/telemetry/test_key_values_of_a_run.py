import json
import math

import pytest

from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.key_values import key_values_in


def manifest_of(folder):
    return json.loads((folder / "run.json").read_bytes())


@pytest.mark.parametrize("diagnostics", [True, False])
def test_run_json_has_the_configuration_and_the_evaluations(tmp_path, diagnostics):
    with TelemetryLogger("r", log_dir=tmp_path, log_every=1, diagnostics=diagnostics) as log:
        log.log_start(config={"lr": 1e-3, "rank": 16, "api_key": "sk-abcdefghijklmnopqrstuvwxyz0123"}, seed=7)
        for step, loss in enumerate([3.0, 1.0, math.nan]):
            log.log_eval(step, val_loss=loss, accuracy=step / 10)
    manifest = manifest_of(tmp_path / "r")
    found = key_values_in(tmp_path / "r" / "metrics.jsonl")

    assert {name: manifest["config"][name] for name in ("learning_rate", "lora_rank", "seed", "api_key")} == {
        "learning_rate": 1e-3,
        "lora_rank": 16,
        "seed": 7,
        "api_key": "***",
    }
    assert manifest["evaluations"] == {
        "val_loss": {
            "last": None,
            "non_finite": {"last": "NaN"},
            "last_step": 2,
            "best": 1.0,
            "best_step": 1,
            "direction": "min",
        },
        "accuracy": {"last": 0.2, "last_step": 2, "best": 0.2, "best_step": 2, "direction": "max"},
    }
    assert manifest["config"] == found.config
    assert {name: item.as_json() for name, item in found.evaluations.items()} == manifest["evaluations"]


def test_the_configuration_is_there_while_the_run_has_just_begun(tmp_path):
    with TelemetryLogger("r", log_dir=tmp_path) as log:
        log.log_start(config={"lr": 1e-3})

        wait_until(lambda: manifest_of(tmp_path / "r").get("config") == {"learning_rate": 1e-3})


@pytest.mark.parametrize("diagnostics", [True, False])
def test_a_resumed_run_continues_its_evaluations(tmp_path, diagnostics):
    options = {"log_dir": tmp_path, "log_every": 1, "diagnostics": diagnostics}
    with TelemetryLogger("r", **options) as log:
        log.log_start(config={"lr": 1e-3})
        log.log_eval(1, val_loss=1.0)
    with TelemetryLogger("r", resume=True, **options) as log:
        log.log_eval(2, val_loss=2.0)
    manifest = manifest_of(tmp_path / "r")

    assert manifest["config"] == {"learning_rate": 1e-3}
    assert manifest["evaluations"]["val_loss"] == {
        "last": 2.0,
        "last_step": 2,
        "best": 1.0,
        "best_step": 1,
        "direction": "min",
    }
