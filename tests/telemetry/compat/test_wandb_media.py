"""Media of W&B scripts, and scripts that log through Accelerate."""

from __future__ import annotations

import io
import struct
import textwrap
import wave
import zlib

import pytest

import toolkit.telemetry.compat.wandb as wandb
from tests.lengths import in_make_faults
from tests.records import read_records
from tests.telemetry.logged import run_program


def finished(run, event=None):
    wandb.finish()
    return read_records(run.telemetry.run_folder / "metrics.jsonl", event)


def test_a_video_is_a_file_or_becomes_an_animated_picture(begin, tmp_path):
    numpy = pytest.importorskip("numpy")
    (tmp_path / "clip.mp4").write_bytes(b"an mp4")
    frames = numpy.zeros((5, 3, 8, 6), dtype="uint8")
    frames[:, 0] = numpy.arange(5)[:, None, None] * 50
    run = begin()
    wandb.log(
        {
            "clip": wandb.Video(str(tmp_path / "clip.mp4"), caption="a clip"),
            "made": wandb.Video(frames, fps=2),
        }
    )
    wandb.log({"both": wandb.Video(numpy.stack([frames, frames]), fps=10)})
    samples = {sample["name"]: sample for sample in finished(run, "sample")}
    folder = run.telemetry.run_folder

    assert samples["clip"]["path"].endswith(".mp4")
    assert (folder / samples["clip"]["path"]).read_bytes() == b"an mp4"
    assert samples["clip"]["prompt"] == "a clip"
    made = (folder / samples["made"]["path"]).read_bytes()
    chunks = png_chunks(made)
    assert [kind for kind, _ in chunks].count("fcTL") == 5
    assert struct.unpack(">HH", chunks[2][1][20:24]) == (500, 1000)
    assert struct.unpack(">II", png_chunks((folder / samples["both"]["path"]).read_bytes())[0][1][:8]) == (
        12,
        8,
    )
    pillow = pytest.importorskip("PIL.Image")
    with pillow.open(io.BytesIO(made)) as picture:
        assert (picture.n_frames, picture.size) == (5, (6, 8))
        picture.seek(4)
        assert picture.convert("RGB").getpixel((0, 0)) == (200, 0, 0)


def png_chunks(data):
    chunks, at = [], 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + body),)
        chunks.append((kind.decode(), body))
        at += 12 + length
    return chunks


def test_a_sound_is_a_file_or_samples(begin, tmp_path):
    (tmp_path / "sound.mp3").write_bytes(b"an mp3")
    run = begin()
    wandb.log(
        {
            "file": wandb.Audio(str(tmp_path / "sound.mp3")),
            "mono": wandb.Audio([0.0, 0.5, -1.0, 7.0], sample_rate=8000, caption="a beep"),
            "stereo": wandb.Audio([[0.0, 1.0], [0.5, -0.5]], sample_rate=44100),
        }
    )
    samples = {sample["name"]: sample for sample in finished(run, "sample")}
    folder = run.telemetry.run_folder

    assert (folder / samples["file"]["path"]).read_bytes() == b"an mp3"
    with wave.open(str(folder / samples["mono"]["path"])) as mono:
        assert (mono.getnchannels(), mono.getframerate(), mono.getnframes()) == (1, 8000, 4)
        assert struct.unpack("<4h", mono.readframes(4)) == (0, 16384, -32767, 32767)
    with wave.open(str(folder / samples["stereo"]["path"])) as stereo:
        assert (stereo.getnchannels(), stereo.getnframes()) == (2, 2)


def test_a_page_is_kept_as_it_is(begin, tmp_path):
    (tmp_path / "page.html").write_text("<b>from a file</b>")
    run = begin()
    wandb.log({"a": wandb.Html("<i>text</i>"), "b": wandb.Html(str(tmp_path / "page.html"))})
    wandb.log({"c": wandb.Html(io.StringIO("<p>open</p>"))})
    pages = {page["name"]: page["path"] for page in finished(run, "html")}

    texts = {name: (run.telemetry.run_folder / path).read_text() for name, path in pages.items()}
    assert texts == {"a": "<i>text</i>", "b": "<b>from a file</b>", "c": "<p>open</p>"}


def test_unreadable_media_do_not_raise(begin, tmp_path):
    numpy = pytest.importorskip("numpy")
    run = begin()
    wandb.log(
        {"gone": wandb.Video(str(tmp_path / "gone.mp4")), "odd": wandb.Video(numpy.zeros((2, 2))), "x": 1.0}
    )
    wandb.log({"mute": wandb.Audio([0.0, 1.0]), "none": wandb.Audio(str(tmp_path / "gone.wav"))})
    records = finished(run)

    assert [record["x"] for record in records if record["event"] == "step"] == [1.0]
    assert [record for record in records if record["event"] == "sample"] == []


ACCELERATED = """
    import sys
    import toolkit.telemetry.compat.wandb

    sys.modules["wandb"] = toolkit.telemetry.compat.wandb

    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with="wandb")
    accelerator.init_trackers("greyjacket", config={"lr": 0.1}, init_kwargs={"wandb": {"name": "through"}})
    for step in range(3):
        accelerator.log({"loss": 1.0 / (step + 1)}, step=step)
    tracker = accelerator.get_tracker("wandb", unwrap=True)
    import wandb
    tracker.log({"picture": wandb.Image(torch.zeros(3, 4, 4))})
    accelerator.end_training()
"""


@in_make_faults
def test_a_script_that_logs_through_accelerate_does_so_without_wandb(tmp_path):
    for package in ("accelerate", "torch", "wandb"):
        pytest.importorskip(package)
    run_program(tmp_path, "-c", textwrap.dedent(ACCELERATED))

    run = tmp_path / "logs" / "through"
    assert [row["loss"] for row in read_records(run / "metrics.jsonl", "step")] == [
        1.0,
        0.5,
        pytest.approx(1 / 3),
    ]
    assert read_records(run / "metrics.jsonl", "start")[0]["config"] == {"lr": 0.1}
    assert len(read_records(run / "metrics.jsonl", "sample")) == 1
    assert not (tmp_path / "wandb").exists()
