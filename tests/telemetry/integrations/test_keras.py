"""Trainings with the real Keras, on torch."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest

from tests.lazy_module import LazyModule
from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S
from toolkit.telemetry.runfolder.manifest import read_manifest

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = LazyModule("keras")
ours = LazyModule("toolkit.telemetry.integrations.keras")

QUIET = {"system": False, "csv": False, "code": False, "quiet": True, "close_timeout": PATIENCE_S}


def make_model():
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)], name="little")
    model.compile(keras.optimizers.Adam(0.1, gradient_accumulation_steps=2), "mse", metrics=["mae"])
    return model


def fit(model, *callbacks, epochs=2, **arguments):
    """Fit to 32 samples, of which 8 are held back: three batches an epoch."""
    given = np.linspace(0.0, 1.0, 128, dtype="float32").reshape(32, 4)
    return model.fit(
        given,
        given.sum(axis=1),
        epochs=epochs,
        batch_size=8,
        validation_split=0.25,
        verbose=0,
        callbacks=list(callbacks),
        **arguments,
    )


def session(folder):
    return read_manifest(folder).sessions[-1]


def test_a_fit_is_a_run_with_the_numbers_of_its_history_and_a_second_fit_another(tmp_path):
    telemetry = ours.TelemetryCallback(log_dir=tmp_path, log_every=1, **QUIET)
    model = make_model()
    save = keras.callbacks.ModelCheckpoint(str(tmp_path / "of-{epoch}.keras"))
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    losses = []
    history = fit(model, telemetry, save, seen).history
    # Keras Tuner copies the callbacks for each of its trainings.
    fit(model, copy.deepcopy(telemetry), initial_epoch=1)

    found = {}
    for record in read_records(tmp_path / "little/metrics.jsonl"):
        found.setdefault(record["event"], []).append(record)
    (start,) = found["start"]
    assert start["config"]["optimizer"]["learning_rate"] == start["learning_rate"] == 0.1
    assert (start["max_steps"], start["model_total_params"], start["model_trainable_params"]) == (6, 13, 13)
    assert [step["global_step"] for step in found["step"]] == [1, 2, 3, 4, 5, 6]
    assert [step["train_loss"] for step in found["step"]] == pytest.approx(losses)
    assert [step["lr"] for step in found["step"]] == pytest.approx([0.1] * 6)
    assert [epoch["loss"] for epoch in found["epoch"]] == pytest.approx(history["loss"])
    assert [each["val_loss"] for each in found["eval"]] == pytest.approx(history["val_loss"])
    assert [(each["global_step"], each["epoch"]) for each in found["epoch"]] == [(3, 1), (6, 2)]
    assert [each["checkpoint_path"][-10:] for each in found["checkpoint"]] == ["of-1.keras", "of-2.keras"]
    assert session(tmp_path / "little").status == "finished"

    (start,) = read_records(tmp_path / "little-2/metrics.jsonl", "start")
    steps = read_records(tmp_path / "little-2/metrics.jsonl", "step")
    assert [step["global_step"] for step in steps] == [7, 8, start["max_steps"]] == [7, 8, 9]
    assert session(tmp_path / "little-2").status == "finished"


def test_an_exception_of_the_model_ends_the_run_at_once(tmp_path):
    def fail(*_):
        raise FloatingPointError("diverged")

    model = make_model()
    model.train_step = fail
    with pytest.raises(FloatingPointError):
        fit(model, ours.TelemetryCallback(log_dir=tmp_path, **QUIET))

    assert session(tmp_path / "little").status == "failed"
    assert read_records(tmp_path / "little/metrics.jsonl", "error")[0]["type"] == "FloatingPointError"
