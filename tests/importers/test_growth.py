"""A run that grows is read as a finished one is, from cursors alone, each byte once."""

from __future__ import annotations

import random
import shutil

import pytest

from tests.importers.reading import points_in
from tests.importers.samples import ours
from toolkit.telemetry.importers import files
from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.importers.source import read_all

GROWING = [
    "dvclive/live_3_49",
    "mlflow_files/store_3_17",
    "neptune/offline_1",
    "swanlab/offline_current",
    "tensorboard/tensorboardx_2_6_everything",
    "trackio/jsonl_0_43",
    "wandb/offline_0_31",
]
_ROUNDS = 4


def by_id(folder):
    return {source.info.source_id: source for source in find_sources(folder).runs}


@pytest.mark.parametrize("name", GROWING)
def test_a_run_that_grows_is_read_as_a_finished_one(name, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(ours() / name, folder, symlinks=True)
    contents = {
        path: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.suffix not in (".png", ".yaml", ".json")
    }
    whole = {key: points_in(read_all(source)) for key, source in by_id(folder).items()}
    # New objects each time: what they know is in the cursor.
    rounds = [by_id(folder) for _ in range(_ROUNDS + 1)]
    for path in contents:
        path.write_bytes(b"")
    chance = random.Random(name)
    found = {key: {} for key in whole}
    cursors = dict.fromkeys(whole)
    read = 0
    for number, sources in enumerate(rounds):
        for path, content in contents.items():
            size = path.stat().st_size
            more = len(content) if number == _ROUNDS else chance.randint(0, len(content) // 3)
            with path.open("ab") as file:
                file.write(content[size : size + more])
        for key, source in sources.items():
            batch = source.read(cursors[key], max_bytes=10**9)
            assert not batch.replaced
            points_in([batch], found[key])
            cursors[key] = batch.cursor
            read += batch.bytes_read

    assert found == whole
    assert sum(map(len, whole.values()))
    # Trackio's fragments are shared by runs; elsewhere each byte is read once.
    assert read <= sum(map(len, contents.values())) * (2 if name.startswith("trackio") else 1)


@pytest.mark.parametrize("name", GROWING)
def test_small_batches_give_the_same_points(name):
    for source in find_sources(ours() / name).runs:
        batches, cursor = [], None
        while not batches or batches[-1].more:
            batches.append(source.read(cursor, max_bytes=2_000))
            assert batches[-1].cursor != cursor
            cursor = batches[-1].cursor

        assert points_in(batches) == points_in(read_all(source))


def test_bytes_written_during_a_read_are_left_for_the_next(tmp_path, monkeypatch):
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n0,1\n")
    (source,) = find_sources(tmp_path).runs
    opened = files.OpenFile.__init__

    def open_and_grow(self, fd):
        opened(self, fd)
        with path.open("a") as file:
            file.write(f"{path.stat().st_size},1\n")

    monkeypatch.setattr(files.OpenFile, "__init__", open_and_grow)
    found, cursor = {}, None
    for _ in range(5):
        batch = source.read(cursor)
        points_in([batch], found)
        cursor = batch.cursor
    monkeypatch.undo()
    points_in([source.read(cursor)], found)

    assert found == points_in(read_all(source))
