from __future__ import annotations

import errno
import io
import json
import math
import os
import subprocess
import sys

import pytest
from PIL import Image

from toolkit.telemetry.mirrors.tensorboard.exporter import TensorBoardExporter

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

START = {
    "event": "start",
    "time": 1_700_000_000.0,
    "seq": 0,
    "session": 1,
    "elapsed": 0.0,
    "run_name": "greyjacket",
}


def step(global_step, loss=0.5, **fields):
    record = {"event": "step", "time": 1_700_000_000.25 + global_step, "seq": global_step, "session": 1}
    return {**record, "global_step": global_step, "train_loss": loss, **fields}


def read(folder):
    """Open `folder` with TensorBoard's own reader."""
    accumulator = accumulators.EventAccumulator(
        str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0}
    )
    accumulator.Reload()
    return accumulator


def write(folder, *records, **options):
    exporter = TensorBoardExporter(folder, **options)
    exporter.write(records)
    exporter.close()


def test_what_is_not_finite_is_shown_as_it_is(tmp_path):
    write(
        tmp_path,
        step(1, loss=None, nan_inf_detected=True, non_finite={"train_loss": "NaN"}),
        step(2, loss=None, nan_inf_detected=True, non_finite={"train_loss": "-Infinity"}),
        step(3, loss=1e300),
    )

    values = [point.value for point in read(tmp_path).Scalars("train_loss")]

    assert math.isnan(values[0])
    assert values[1:] == [-math.inf, math.inf]


def test_the_start_record_and_what_follows_it_are_shown_as_text_without_secrets(tmp_path):
    write(
        tmp_path,
        {**START, "config": {"hf_token": "abc", "lr": 1e-4, "note": "```<script>"}},
        {**START, "event": "environment", "host": "here"},
    )

    (event,) = read(tmp_path).Tensors("config/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    (described,) = read(tmp_path).Tensors("environment/text_summary")

    assert b'"host": "here"' in described.tensor_proto.string_val[0]
    assert all(line.startswith("    ") for line in text.splitlines())
    assert json.loads(text) == {
        "run_name": "greyjacket",
        "config": {"hf_token": "***", "lr": 1e-4, "note": "```<script>"},
    }


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_a_sample_in_the_run_folder_is_shown_as_an_image(tmp_path, kind):
    image = io.BytesIO()
    Image.new("RGB", (31, 17), "red").save(image, kind)
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "a").write_bytes(image.getvalue())
    record = {"event": "sample", "time": 1.0, "global_step": 5, "path": "samples/a", "prompt": "a cat"}

    write(tmp_path / "tensorboard", record)

    (shown,) = read(tmp_path / "tensorboard").Images("sample/a cat")
    assert (shown.width, shown.height, shown.step) == (31, 17, 5)
    assert shown.encoded_image_string == image.getvalue()


def test_a_sample_that_is_no_image_of_the_runs_is_passed_over(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    Image.new("RGB", (3, 3)).save(tmp_path / "outside.png")
    (run / "link.png").symlink_to(tmp_path / "outside.png")
    (run / "text.png").write_text("no image")
    (run / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    os.mkfifo(run / "pipe.png")
    paths = [
        "../outside.png",
        str(tmp_path / "outside.png"),
        "link.png",
        "text.png",
        "cut.jpg",
        "pipe.png",
        "no",
        None,
        5,
    ]

    write(run / "tensorboard", step(1), *({"event": "sample", "time": 1.0, "path": path} for path in paths))

    assert read(run / "tensorboard").Tags()["images"] == []


def test_a_resumed_run_adds_a_file_and_overwrites_none(tmp_path):
    write(tmp_path, step(1), step(2))
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    write(tmp_path, step(2, loss=0.1), step(3))

    points = read(tmp_path).Scalars("train_loss")

    assert all(file.read_bytes() == content for file, content in before.items())
    assert len(list(tmp_path.iterdir())) == 2
    assert [point.step for point in points] == [1, 2, 2, 3]


def test_a_write_that_fails_halfway_leaves_no_torn_event(tmp_path, monkeypatch):
    exporter = TensorBoardExporter(tmp_path)
    exporter.write([step(1)])
    real_write = os.write

    def full_disk(file, data):
        if len(data) > 10:
            return real_write(file, data[:10])
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full_disk)
        with pytest.raises(OSError, match="no space"):
            exporter.write([step(2)])
    exporter.write([step(2), step(3)])
    exporter.close()

    assert [point.step for point in read(tmp_path).Scalars("train_loss")] == [1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_ends_in_a_torn_event_is_left_and_another_begun(tmp_path, monkeypatch):
    exporter = TensorBoardExporter(tmp_path)
    exporter.write([step(1)])

    def broken(*arguments):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", broken)
        disk.setattr(os, "ftruncate", broken)
        with pytest.raises(OSError, match="broken"):
            exporter.write([step(2)])
    exporter.write([step(2)])
    exporter.close()

    assert [point.step for point in read(tmp_path).Scalars("train_loss")] == [1, 2]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_was_removed_is_begun_again(tmp_path):
    exporter = TensorBoardExporter(tmp_path / "tensorboard")
    exporter.write([step(1)])
    next((tmp_path / "tensorboard").iterdir()).unlink()
    (tmp_path / "tensorboard").rmdir()

    exporter.write([step(2)])
    exporter.close()

    assert [point.step for point in read(tmp_path / "tensorboard").Scalars("train_loss")] == [2]


def test_neither_torch_nor_tensorflow_nor_numpy_is_needed(tmp_path):
    script = (
        "import sys; from pathlib import Path;"
        "from toolkit.telemetry.mirrors.tensorboard.exporter import TensorBoardExporter;"
        f"TensorBoardExporter(Path({str(tmp_path)!r})).write([{step(1)!r}]);"
        "print(sorted({'torch', 'tensorflow', 'numpy', 'pandas'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_missing_tensorboard_is_reported_with_the_command_that_installs_it(tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "tensorboard", None)

    with pytest.raises(ModuleNotFoundError, match="pip install"):
        TensorBoardExporter(tmp_path).write([step(1)])
