"""Event files: every point is there, damage is found, and nothing is read twice."""

from __future__ import annotations

import functools
import math
import struct
import sys
import tempfile
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboardX import SummaryWriter

from tests.importers.reading import cold, only_run, points_in
from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.importers.framing import tfrecord
from toolkit.telemetry.importers.source import read_all


@functools.cache
def content(count, start=0):
    """Return an event file with three scalars a step, written by tensorboardX."""
    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as writer:
            for step in range(start, start + count):
                for number, tag in enumerate(("loss", "lr", "eval/acc")):
                    value = math.nan if step == start + 7 else (step + 1) * (number + 0.5)
                    writer.add_scalar(tag, value, step * 100, walltime=1_700_000_000.25 + step)
                if step % 50 == 0:
                    writer.add_text("note", f"step {step}", step)
        (path,) = Path(folder).glob("*tfevents*")
        return path.read_bytes()


def write(folder, count=150, start=0):
    path = folder / "events.out.tfevents.1700000000.host.1.0"
    folder.mkdir(exist_ok=True, parents=True)
    path.write_bytes(content(count, start))
    return path


def official(folder):
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {
        tag: [(event.step, repr(event.wall_time), repr(float(event.value))) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


@pytest.mark.parametrize("has_numpy", [True, False])
def test_points_are_those_of_tensorboard(has_numpy, tmp_path, monkeypatch):
    if not has_numpy:
        monkeypatch.setitem(sys.modules, "numpy", None)
    write(tmp_path)

    found = cold(tmp_path)

    assert {metric: points for (_, _, metric), points in found.items()} == official(tmp_path)


def test_a_damaged_value_is_left_out_and_counted(tmp_path):
    path = write(tmp_path)
    before = cold(tmp_path)
    data = bytearray(path.read_bytes())
    starts, lengths, _, _ = tfrecord.frames(bytes(data))
    data[starts[300] + lengths[300] - 2] ^= 0x40
    path.write_bytes(data)
    source = only_run(tmp_path)
    batch = source.read(None)

    after = points_in([batch])
    assert sum(map(len, after.values())) == sum(map(len, before.values())) - 1
    assert batch.passed_over == {(0, "damaged records"): 1}


def test_damage_of_a_length_ends_the_file_and_says_where(tmp_path):
    path = write(tmp_path)
    data = bytearray(path.read_bytes())
    starts, _, _, _ = tfrecord.frames(bytes(data))
    data[starts[400] - 12] ^= 1
    path.write_bytes(data)
    source = only_run(tmp_path)
    found = points_in(read_all(source))

    assert 0 < sum(map(len, found.values())) < 400
    assert source.info.notes == [
        f"{path.name} is damaged at byte {starts[400] - 12:,}; what comes after it cannot be read"
    ]


def test_a_record_larger_than_the_limit_is_skipped(tmp_path):
    path = write(tmp_path, count=5)
    before = cold(tmp_path)
    size = 17 * 1024**2
    with path.open("ab") as file:
        file.write(struct.pack("<QI", size, tfrecord.checksum_of_length(size)))
        file.write(bytes(size + 4))
        file.write(content(3, start=100))

    batch = only_run(path).read(None)

    after = points_in([batch])
    assert batch.passed_over == {(0, "records of more than 16 MB"): 1}
    assert sum(map(len, after.values())) == sum(map(len, before.values())) + 9


def test_a_lone_folder_called_train_is_a_run(tmp_path):
    for folder in ("train", "train2"):
        write(tmp_path / "detect" / folder, count=3)

    assert sorted(source.info.name for source in find_sources(tmp_path).runs) == ["detect/train", "train2"]


def test_folders_of_one_run_are_one_run(tmp_path):
    for folder in ("train", "validation"):
        write(tmp_path / "logs" / folder, count=3)

    source = only_run(tmp_path)

    assert source.info.name == "logs"
    assert [piece.prefix for piece in source.info.pieces] == ["train/", "validation/"]
