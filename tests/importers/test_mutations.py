"""Files that are damaged in any way: no exception, and neither time nor memory without bounds."""

from __future__ import annotations

import random
import re
import resource
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from tests.importers.samples import ours
from tests.lengths import is_long, longer
from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.importers.source import read_all

SEEDS = {
    "ai_toolkit": ("ai_toolkit/nan_values", "loss_log.db"),
    "comet": ("comet/offline_3", "*.zip"),
    "dvclive": ("dvclive/live_3_49", "dvclive/*"),
    "huggingface": ("hf_trainer_state/nan_and_resume_5_22", "checkpoint-50/*"),
    "mlflow": ("mlflow_files/store_3_17", "mlruns/486956439652907091/1374669bee7c46f9a4839466b7298cbf/*"),
    "neptune": ("neptune/offline_1", ".neptune/*"),
    "swanlab_frames": ("swanlab/offline_current", "swanlog/run-20261116_032955-6hi1jx0c/*"),
    "swanlab_logs": ("swanlab/local_current", "swanlog/run-20261116_032951-4g7b5jsg/*"),
    "tensorboard": ("tensorboard/tensorboardx_2_6_everything", "run_a/1794799818.8200607/*"),
    "tensorboard_add_scalars": ("tensorboard/tensorboardx_2_6_everything", "run_b/both/*"),
    "trackio_jsonl": ("trackio/jsonl_0_43", "inbox/b12f58012fd941d4/*"),
    "trackio_parquet": ("trackio/parquet_0_43", "*"),
    "trackio_sqlite": ("trackio/sqlite_0_2_8", "*.db"),
    "wandb": ("wandb/offline_0_31", "wandb/offline-run-20261116_032633-again/*.wandb"),
}
TEXTS = {
    "table_csv": (
        "metrics.csv",
        "epoch,step,train_loss,note\n" + "".join(f"0,{i},{1 / (i + 1)},x\n" for i in range(40)),
    ),
    "table_jsonl": (
        "log.jsonl",
        "".join(f'{{"step": {i}, "loss": {1 / (i + 1)}, "lr": NaN}}\n' for i in range(40)),
    ),
    "text": (
        "train.log",
        "".join(f"step {i} | loss: {1 / (i + 1)} | lr 1e-4\n{i} train {1 / (i + 1)}\n" for i in range(40)),
    ),
    "fork": (
        "metrics.jsonl",
        '{"event": "start", "time": 1.0}\n{"event": "step", "time": 2.0, "global_step": 1, "x": 3}\n',
    ),
}
DATABASES = {
    "mlflow_sqlite": """
        CREATE TABLE alembic_version (version_num TEXT);
        CREATE TABLE experiments (experiment_id INTEGER, name TEXT, lifecycle_stage TEXT);
        CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, experiment_id INTEGER, lifecycle_stage TEXT,
            end_time INTEGER);
        CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, step INTEGER, is_nan INTEGER);
        CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
        INSERT INTO experiments VALUES (0, 'Default', 'active');
        INSERT INTO runs VALUES ('aa', 'one', 'FINISHED', 0, 'active', 1),
            ('bb', 'two', 'RUNNING', 0, 'active', NULL);
        INSERT INTO params VALUES ('lr', '0.1', 'aa');
        WITH RECURSIVE n(step) AS (SELECT 0 UNION ALL SELECT step + 1 FROM n WHERE step < 200)
        INSERT INTO metrics SELECT 'loss', 1.0 / (step + 1), 1700000000000 + step,
            CASE step % 2 WHEN 0 THEN 'aa' ELSE 'bb' END, step, step % 50 = 49 FROM n;
    """,
}
MOST_SECONDS, MOST_MEGABYTES = 1.0, 300.0
_ODD = (b"\xff" * 8, bytes(8), b"\x7f" * 8, b"1e999", b"[" * 64, b'"\\ud800"', b"-", b"\n\n", b"9" * 400)


def mutated(data, chance):
    data = bytearray(data or b"\0")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        kind = chance.randrange(7)
        if kind == 0:
            data[at] = chance.randrange(256)
        elif kind == 1:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 2 and at:
            del data[at:]
        elif kind == 3:
            del data[at : at + chance.randint(1, 64)]
        elif kind == 4:
            data[at:at] = chance.randbytes(chance.randint(1, 16))
        elif kind == 5:
            odd = chance.choice(_ODD)
            data[at : at + len(odd)] = odd
        else:
            other = chance.randrange(len(data))
            data[at : at + 32] = data[other : other + 32]
        data = data or bytearray(b"\0")
    return bytes(data)


def copied(name, folder):
    """Put the seed of a format into `folder`; return its files with their contents."""
    if name in TEXTS:
        file, text = TEXTS[name]
        folder.mkdir()
        (folder / file).write_text(text)
    elif name in DATABASES:
        folder.mkdir()
        database = sqlite3.connect(folder / "mlflow.db")
        database.executescript(DATABASES[name])
        database.close()
    else:
        sample, wanted = SEEDS[name]
        source = ours() / sample
        for path in sorted(source.glob(wanted)):
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(path, target) if path.is_dir() else shutil.copy2(path, target)
    return {
        path: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".png"
    }


def read(folder, only=None):
    points = 0
    for source in find_sources(folder, only=only).runs:
        for batch in read_all(source):
            points += sum(map(len, batch.columns))
        source.status(0.0)
    return points


class Cost:
    """CPU seconds and megabytes that reading took. The seconds are those of this process, however busy the machine."""

    def __init__(self, path, only):
        # Linux forgets the peak so far: then each file has its own.
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            pass
        before = self._megabytes("VmRSS")
        started = time.process_time()
        read(path, only)
        self.seconds = time.process_time() - started
        self.megabytes = max(0.0, self._megabytes("VmHWM") - before)

    @staticmethod
    def _megabytes(name):
        try:
            found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
        except OSError:
            found = None
        return int(found[1]) / 1024 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("name", [*SEEDS, *TEXTS, *DATABASES])
def test_damaged_files_raise_nothing(name, tmp_path, monkeypatch, record_property):
    # The walk and the summary catch what a format raises; here it must raise nothing.
    monkeypatch.setattr(
        "toolkit.telemetry.core.guard.Guard.call", lambda guard, doing, function, *args: function(*args)
    )
    contents = copied(name, tmp_path / "run")
    root, only = (next(iter(contents)), "text") if name == "text" else (tmp_path, None)
    assert read(root, only)
    chance = random.Random(name)
    files = list(contents)
    slowest = largest = 0.0
    # Parquet takes the longest by far.
    count = longer(6 if "parquet" in name else 30, 10_000)
    for number in range(count):
        path = chance.choice(files)
        path.write_bytes(mutated(contents[path], chance))
        cost = Cost(root, only)
        if is_long() and (cost.seconds > MOST_SECONDS or cost.megabytes > MOST_MEGABYTES):
            # Something else may have happened meanwhile, such as a collection of garbage.
            cost = min((Cost(root, only) for _ in range(3)), key=lambda cost: cost.seconds)
            assert cost.seconds <= MOST_SECONDS, (number, path.name)
            assert cost.megabytes <= MOST_MEGABYTES, (number, path.name)
        slowest, largest = max(slowest, cost.seconds), max(largest, cost.megabytes)
        path.write_bytes(contents[path])
    if is_long():
        record_property(
            "measured", f"{name}: {count:,} files, at most {slowest:.2f} s of CPU, {largest:.0f} MB"
        )


@pytest.mark.parametrize("name", ["tensorboard_add_scalars", "wandb", "neptune", "table_csv"])
def test_what_lies_before_a_damage_is_unchanged(name, tmp_path):
    contents = copied(name, tmp_path / "run")
    path = max(contents, key=lambda path: len(contents[path]))
    whole = _values(tmp_path)
    place = len(contents[path]) * 3 // 4
    damaged = bytearray(contents[path])
    damaged[place] ^= 0x55
    path.write_bytes(damaged)

    found = _values(tmp_path)

    for key, values in found.items():
        kept = len(values) // 2
        assert values[:kept] == whole[key][:kept]
    assert sum(map(len, found.values())) >= sum(map(len, whole.values())) // 2


def _values(folder):
    found = {}
    for source in find_sources(folder).runs:
        for batch in read_all(source):
            for column in batch.columns:
                key = (source.info.source_id, column.piece, column.session, column.metric)
                found.setdefault(key, []).extend(map(repr, column.values))
    return found
