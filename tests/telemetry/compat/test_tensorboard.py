"""Our SummaryWriter next to torch's: the same calls, whose event files TensorBoard itself reads back."""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import struct
import threading
import wave
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S
from toolkit.telemetry.compat import null_object
from toolkit.telemetry.compat.tensorboard import SummaryWriter
from toolkit.telemetry.logger.options import OptionsError
from toolkit.telemetry.runfolder.codec import with_non_finite

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
theirs = pytest.importorskip("torch.utils.tensorboard")
accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

QUIET = {"system": False, "csv": False, "output": False, "code": False, "close_timeout": PATIENCE_S}
ENVELOPE = {"event", "time", "elapsed", "seq", "session", "global_step", "nan_inf_detected", "sec_per_step"}


def ours(folder, *args, **keywords):
    return SummaryWriter(folder, *args, telemetry=QUIET, **keywords)


def points_of(folder):
    """Return the points of each tag of our run: step, value as a float of 32 bits, wall time."""
    found = {}
    for record in map(with_non_finite, read_records(folder, "step")):
        for name, value in record.items():
            if name not in ENVELOPE and type(value) in (int, float):
                found.setdefault(name, []).append(
                    (record["global_step"], numpy.float32(value), record["time"])
                )
    return found


def events_of(folder):
    reader = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return reader.Reload()


def test_scalars_are_those_that_tensorboard_reads_from_torchs_writer(tmp_path):
    def script(writer):
        for step in (1, 2, 3):
            writer.add_scalar("train/loss", 1.0 / step, step)
            writer.add_scalar("lr", numpy.float64(1e-4 / step), step)
            writer.add_scalar("train/accuracy", torch.tensor(0.1 * step), numpy.int64(step))
        # Another count of steps, as of epochs; several values at one step; no number; a loop that goes back.
        writer.add_scalar("val/loss", 0.7, 1)
        writer.add_scalar("lr", torch.tensor([5e-5]), 3)
        writer.add_scalar("train/loss", math.nan, 4)
        writer.add_scalar("train/loss", -math.inf, 5, walltime=1_600_000_000.5)
        writer.add_scalar("train/loss", 0.25, 2)
        writer.add_scalar("once", 7)
        writer.add_scalars("both", {"a": 1.0, "b": 2.0}, 6)
        writer.close()

    script(theirs.SummaryWriter(tmp_path / "theirs"))
    writer = ours(tmp_path / "ours")
    script(writer)

    assert (writer.log_dir, writer.get_logdir()) == (str(tmp_path / "ours"), str(tmp_path / "ours"))
    found, read = points_of(tmp_path / "ours"), events_of(tmp_path / "theirs")
    expected = {tag: read.Scalars(tag) for tag in read.Tags()["scalars"]}
    for sub in ("a", "b"):
        expected[f"both/{sub}"] = events_of(tmp_path / "theirs" / f"both_{sub}").Scalars("both")
    assert set(found) == set(expected)
    assert len(expected["train/loss"]) == 6
    for tag, events in expected.items():
        assert [point[0] for point in found[tag]] == [event.step for event in events], tag
        assert numpy.array_equal(
            [point[1] for point in found[tag]],
            [numpy.float32(event.value) for event in events],
            equal_nan=True,
        ), tag
    assert found["train/loss"][4][2] == expected["train/loss"][4].wall_time == 1_600_000_000.5
    # A tag that counts epochs is no wrong call; a loss that goes back is.
    found = read_records(tmp_path / "ours", "finding")
    mistakes = [record["message"] for record in found if record["kind"] == "wrong_call"]
    assert ["step 2 was logged after" in message for message in mistakes] == [True]


def test_media_and_settings_are_kept_as_torch_has_them(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(null_object, "_warned", set())
    picture = numpy.random.default_rng(0).integers(0, 256, (3, 4, 6), dtype="uint8")
    sound = torch.linspace(-1.0, 1.0, 50).reshape(1, -1)

    def script(writer):
        with writer:
            writer.add_image("channels first", torch.from_numpy(picture), 1)
            writer.add_image("channels last", picture.transpose(1, 2, 0), 1, dataformats="HWC")
            writer.add_images("batch", torch.from_numpy(numpy.stack([picture, picture])), 1)
            writer.add_histogram("weights", numpy.arange(100.0), 2)
            writer.add_audio("sound", sound, 3, sample_rate=8000)
            writer.add_text("note", "a *text*", 3)
            writer.add_hparams({"lr": 0.1, "bsize": 4}, {"hparam/accuracy": 0.9}, run_name="h")
            writer.flush()

    script(theirs.SummaryWriter(tmp_path / "theirs"))
    with ours(tmp_path / "ours") as writer:
        writer.add_video("film", torch.zeros(1, 3, 3, 4, 6), 3, fps=2)
        writer.add_figure("figure", Figure(), 3)
        writer.add_mesh("mesh", torch.zeros(1, 3, 3))
        script(writer)
    folder, read = tmp_path / "ours", events_of(tmp_path / "theirs")

    samples = {record["name"]: folder / record["path"] for record in read_records(folder, "sample")}
    assert set(samples) == {"channels first", "channels last", "batch", "figure", "sound", "film"}
    for tag in ("channels first", "channels last"):
        image = read.Images(tag)[0]
        assert (image.width, image.height) == size_of(samples[tag]) == (6, 4)
        assert (
            pixels_of(samples[tag])
            == pixels_of(image.encoded_image_string)
            == picture.transpose(1, 2, 0).tobytes()
        )
    with wave.open(str(samples["sound"])) as file:
        assert (file.getframerate(), file.getnframes()) == (8000, 50)
    (histogram,) = read_records(folder, "histogram")
    assert (sum(histogram["values"]), histogram["bins"][0], histogram["bins"][-1]) == (100, 0.0, 99.0)
    texts = {record["name"]: record["text"] for record in read_records(folder, "text")}
    assert texts["note"] == "a *text*"
    assert read_records(folder, "start")[-1]["config"] == {"lr": 0.1, "bsize": 4}
    assert read_records(folder, "summary")[-1]["hparam/accuracy"] == 0.9
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "add_mesh" in line and "not supported" in line]


class Figure:
    """Has what is used of a figure of matplotlib."""

    def savefig(self, file, **_):
        file.write(b"a picture")


def size_of(path):
    return struct.unpack(">II", path.read_bytes()[16:24])


def pixels_of(file):
    """Return the pixels of an RGB image."""
    image = pytest.importorskip("PIL.Image").open(
        io.BytesIO(file if isinstance(file, bytes) else file.read_bytes())
    )
    return image.convert("RGB").tobytes()


def test_threads_lose_nothing_and_make_one_session_after_a_close(tmp_path):
    writer = ours(tmp_path / "run")
    writer.close()
    gate = threading.Barrier(4)

    def log(number):
        gate.wait()
        for step in range(50):
            writer.add_scalar(f"tag {number}", float(step), step)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(log, range(4)))
    writer.close()

    assert [one.name for one in tmp_path.iterdir()] == ["run"]
    found = points_of(tmp_path / "run")
    assert {tag: [point[0] for point in found[tag]] for tag in found} == {
        f"tag {number}": list(range(50)) for number in range(4)
    }
    kinds = {record["kind"] for record in read_records(tmp_path / "run", "finding")}
    assert "wrong_call" not in kinds


def test_a_folder_is_continued_and_no_call_raises(tmp_path):
    for name, method in inspect.getmembers(SummaryWriter, inspect.isfunction):
        if name.startswith("add_") or name in ("flush", "close"):
            original = inspect.signature(getattr(theirs.SummaryWriter, name))
            assert [*inspect.signature(method).parameters] == [*original.parameters], name
    first = ours(tmp_path / "a" / "run")
    first.add_scalar("loss", 1.0, 10)
    first.close()
    first.add_scalar("loss", 0.9, 11)
    first.close()
    with contextlib.suppress(ZeroDivisionError), ours(tmp_path / "a" / "run", purge_step=5) as again:
        again.add_scalar("loss", torch.zeros(3), 5)
        again.add_scalar("loss", object(), 5)
        again.add_scalar("loss", 1.0, "five")
        again.add_scalars("loss", None, 5)
        again.add_image("image", torch.zeros(3, 4, 4), 5, dataformats="XYZ")
        again.add_histogram("words", ["a"], 5)
        again.add_audio("sound", None, 5)
        again.add_scalar("loss", 0.5, 5)
        again.add_scalar("loss", 0.25, 5, walltime="yesterday")
        again.add_scalar("loss", None, 5)
        again.add_scalar("loss", 1.0, 2**63)
        again.add_scalars("all", {"bad": "x", "yes": True, "large": 2**70}, 6)
        again._get_file_writer().add_summary(None)
        raise ZeroDivisionError
    with pytest.raises(OptionsError, match="log_dir must be a folder"):
        ours("s3://bucket/run")

    records = read_records(tmp_path / "a" / "run", of_any_type=True)
    steps = [
        record for record in records if record["event"] == "step" and isinstance(record.get("loss"), float)
    ]
    assert [(record["session"], record["global_step"], record["loss"]) for record in steps] == [
        (1, 10, 1.0),
        (2, 11, 0.9),
        (3, 5, 0.5),
        (3, 5, 0.25),
    ]
    (both,) = [record for record in records if "all/yes" in record]
    assert (both["all/yes"], both["all/large"], "all/bad" in both) == (1.0, float(2**70), False)
    assert {type(record["time"]) for record in records} == {float}
    said = " ".join(record["message"] for record in records if record.get("kind") == "wrong_call")
    for what in ("got 'yesterday'; the time of", "'loss' is a NoneType", "bits, got 9223372036854775808"):
        assert what in said
    starts = [record for record in records if record["event"] == "start" and record["session"] == 3]
    assert [record["resumed_from_step"] for record in starts if "resumed_from_step" in record] == [4]
    assert [record["status"] for record in records if record["event"] == "end"][-1] == "failed"
