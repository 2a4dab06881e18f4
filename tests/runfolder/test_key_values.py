import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.telemetry.runfolder import key_values
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.key_values import (
    MAX_SETTINGS,
    MAX_VALUE_CHARS,
    KeyValues,
    key_values_in,
    settings_from,
    settings_of,
)
from toolkit.telemetry.runfolder.manifest import Evaluation, evaluations_from


def step(number, **metrics):
    return {"event": "step", "session": 1, "global_step": number, **metrics}


def test_settings_get_their_usual_names_wherever_they_are():
    train = {"lr": "2e-3", "batch_size": 4, "steps": 200, "optimizer": "adamw8bit", "ema": {"decay": 0.99}}
    process = {"network": {"linear": 16}, "train": train, "telemetry": {"log_dir": "x"}}
    start = {"event": "start", "lora_rank": 16, "host": "node1", "config": {"config": {"process": [process]}}}

    assert settings_of(start) == {
        "lora_rank": 16,
        "learning_rate": 0.002,
        "batch_size": 4,
        "max_steps": 200,
        "optimizer": "adamw8bit",
        "train.ema.decay": 0.99,
    }


def test_flat_settings_get_their_usual_names_too_and_another_block_may_have_a_rate_of_its_own():
    flat = {"lr": 1e-4, "rank": 8, "bs": "16", "seed": 3, "name": "my run", "layers": [1, 2]}

    assert settings_from({}, flat) == {"learning_rate": 1e-4, "lora_rank": 8, "batch_size": 16, "seed": 3}
    assert settings_from({"learning_rate": 1e-3}, {"train": {"lr": 1e-3}, "vae": {"lr": 1e-5}}) == {
        "learning_rate": 1e-3,
        "vae.lr": 1e-5,
    }


def test_the_configuration_is_bounded():
    found = settings_from({}, {**{f"k{i}": i for i in range(2 * MAX_SETTINGS)}})
    long = settings_from({}, {"text": "x" * 1000, "a" * 1000: 1, "huge": 10**400, "nan": math.nan})

    assert len(found) == MAX_SETTINGS
    assert {name: len(value) for name, value in long.items()} == {"text": MAX_VALUE_CHARS}


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
@settings(max_examples=40)
def test_any_configuration_becomes_scalars(config):
    assert all(type(value) in (str, int, float, bool) for value in settings_from({}, config).values())


def test_the_best_value_is_finite_and_says_where_it_was():
    found = KeyValues()
    found.take([step(1, train_loss=3.0, reward=1.0), step(2, train_loss=1.0, reward=5.0)])
    found.take([step(3, train_loss=None, non_finite={"train_loss": "NaN"}, reward=2.0), step(4, lr=1e-4)])

    loss, reward = found.evaluations["train_loss"], found.evaluations["reward"]
    assert (loss.best, loss.best_step, loss.last_step, loss.direction) == (1.0, 2, 3, "min")
    assert math.isnan(loss.last)
    assert reward == Evaluation(last=2.0, last_step=3, best=5.0, best_step=2, direction="max")
    assert set(found.evaluations) == {"train_loss", "reward"}


def test_a_metric_that_was_never_finite_has_no_best():
    found = KeyValues()
    found.take([step(1, val_loss=None, non_finite={"val_loss": "-Infinity"})])

    assert found.evaluations["val_loss"].best is None
    assert found.evaluations["val_loss"].last == -math.inf


@pytest.mark.parametrize(
    ("metrics", "evaluated"),
    [
        ({"reward": 1.0, "reward_min": 0.0, "reward_max": 2.0, "reward_mean": 1.0}, ["reward"]),
        ({"reward_mean": 1.0}, ["reward_mean"]),
    ],
)
def test_what_varied_between_two_records_is_no_metric_of_its_own(metrics, evaluated):
    found = KeyValues()
    found.take([step(1, **metrics)])

    assert [*found.evaluations] == evaluated


def test_every_metric_of_an_evaluation_counts_except_its_time():
    found = KeyValues()
    found.take([{"event": "eval", "global_step": 5, "kl": 0.1, "eval_runtime": 3.0, "ok": True}])
    found.take([{"event": "epoch", "epoch": 1, "val_loss": 0.5, "batches": 100}])

    assert found.evaluations == {
        "kl": Evaluation(last=0.1, last_step=5),
        "epoch/val_loss": Evaluation(last=0.5, last_step=5, best=0.5, best_step=5, direction="min"),
    }


def test_of_a_very_long_file_the_start_and_the_end_are_read_and_the_best_is_unknown(tmp_path, monkeypatch):
    lines = [{"event": "start", "session": 1, "learning_rate": 1e-3}]
    for number in range(3000):
        lines.append(step(number, train_loss=1 / (number + 1)))
        if number % 1000 == 500:
            lines.append(
                {"event": "eval", "session": 1, "global_step": number, "val_loss": abs(number - 1500) + 1.0}
            )
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(b"".join(map(encode, lines)) + b'{"event":"eval","global_step":9999,"val_lo')
    whole = key_values_in(log)
    monkeypatch.setattr(key_values, "_MOST_COUNTED_BYTES", 1000)
    monkeypatch.setattr(key_values, "_TAIL_BYTES", 4000)
    parts = key_values_in(log)

    assert whole.config == parts.config == {"learning_rate": 1e-3}
    assert whole.evaluations["val_loss"].best == 1.0
    assert whole.evaluations["train_loss"].best == 1 / 3000
    assert parts.evaluations == {"train_loss": Evaluation(last=1 / 3000, last_step=2999, direction="min")}


@pytest.mark.parametrize(
    "value", [None, 3, [], {"a": 1}, {"a": {"last": "x"}}, {"a": {"best": 1e999}}, {3: {}}]
)
def test_an_invalid_mapping_has_no_evaluations_that_hurt(value):
    assert all(math.isnan(item.last) and item.best is None for item in evaluations_from(value).values())
