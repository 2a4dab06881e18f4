"""Trainings with the real Ultralytics, where it is installed; the locked environment has none."""

from __future__ import annotations

import pytest

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S
from toolkit.telemetry.integrations.ultralytics import TelemetryCallbacks
from toolkit.telemetry.runfolder.manifest import read_manifest

try:
    import cv2
    import numpy as np
    from ultralytics import YOLO
except ImportError:
    pytest.skip(
        "Ultralytics is not installed: pip install ultralytics-opencv-headless", allow_module_level=True
    )


@pytest.fixture
def data(tmp_path):
    """Eight pictures of noise with a box."""
    for folder in ("images", "labels"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    for number in range(8):
        picture = np.random.default_rng(number).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        cv2.imwrite(str(tmp_path / f"data/images/{number}.png"), picture)
        (tmp_path / f"data/labels/{number}.txt").write_text("0 0.4375 0.4375 0.375 0.375\n")
    file = tmp_path / "data/data.yaml"
    file.write_text(f"path: {tmp_path / 'data'}\ntrain: images\nval: images\nnames: {{0: box}}\n")
    return file


def test_each_training_is_a_run_and_an_exception_ends_its_own(tmp_path, data):
    def fail(trainer):
        raise FloatingPointError("diverged")

    model, how = (
        YOLO("yolo11n.yaml"),
        {"imgsz": 64, "batch": 4, "workers": 0, "device": "cpu", "plots": False},
    )
    TelemetryCallbacks(
        log_dir=tmp_path / "logs", log_every=1, system=False, csv=False, close_timeout=PATIENCE_S
    ).add_to(model)
    model.train(data=str(data), epochs=2, project=str(tmp_path / "out"), name="good", **how)
    model.add_callback("on_train_epoch_end", fail)
    with pytest.raises(FloatingPointError):
        model.train(data=str(data), epochs=2, project=str(tmp_path / "out"), name="bad", **how)

    found = {}
    for record in read_records(tmp_path / "logs/good/metrics.jsonl"):
        found.setdefault(record["event"], []).append(record)
    (start,) = found["start"]
    assert (start["config"]["imgsz"], start["max_steps"], start["batch_size"]) == (64, 4, 4)
    assert [step["global_step"] for step in found["step"]] == [1, 2, 3, 4]
    for step in found["step"]:
        parts = [step[f"train/{part}_loss"] for part in ("box", "cls", "dfl")]
        assert step["train_loss"] == pytest.approx(sum(parts))
    assert [(each["epoch"], each["global_step"]) for each in found["epoch"]] == [(1, 2), (2, 4)]
    assert [each.get("evaluated") for each in found["eval"]] == [None, None, "best.pt"]
    assert all("metrics/mAP50(B)" in each for each in found["eval"])
    # That of the best weights has no losses.
    assert ["val/box_loss" in each for each in found["eval"]] == [True, True, False]
    assert len(found["checkpoint"]) == 2
    assert read_manifest(tmp_path / "logs/good").sessions[-1].status == "finished"

    assert read_manifest(tmp_path / "logs/bad").sessions[-1].status == "failed"
    (error,) = read_records(tmp_path / "logs/bad/metrics.jsonl", "error")
    assert error["message"] == "FloatingPointError: diverged"
