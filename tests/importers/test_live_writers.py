"""The real libraries write in another process, and are killed, while their logs are read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.importers.reading import points_in
from tests.importers.samples import fingerprint
from tests.lengths import in_make_faults
from tests.waiting import wait_until
from toolkit.importers.detect import find_sources

WRITERS = {
    "tensorboard": """
import sys
from tensorboardX import SummaryWriter
writer = SummaryWriter(sys.argv[1], flush_secs=0)
for step in range(10**9):
    for tag in ("loss", "lr"):
        writer.add_scalar(tag, 1 / (step + 1), step)
    if step % 20 == 0:
        writer.flush()
        print(step, flush=True)
""",
    "wandb": """
import os, sys
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=sys.argv[1])
import wandb
run = wandb.init(project="live", settings=wandb.Settings(console="off"))
for step in range(10**9):
    run.log({"loss": 1 / (step + 1), "lr": 0.1})
    if step % 20 == 0:
        print(step, flush=True)
""",
    "ai-toolkit": """
import sqlite3, sys, time
writer = sqlite3.connect(sys.argv[1] + "/loss_log.db", isolation_level=None)
writer.execute("PRAGMA journal_mode = WAL")
writer.execute("CREATE TABLE steps (step INTEGER PRIMARY KEY, wall_time REAL NOT NULL)")
writer.execute("CREATE TABLE metric_keys (key TEXT PRIMARY KEY)")
writer.execute("CREATE TABLE metrics (step INT, key TEXT, value_real REAL, value_text TEXT, PRIMARY KEY (step, key))")
for step in range(10**9):
    writer.execute("BEGIN")
    writer.execute("INSERT INTO steps VALUES (?, ?)", (step, time.time()))
    for key in ("loss", "lr"):
        writer.execute("INSERT INTO metrics VALUES (?, ?, ?, NULL)", (step, key, 1 / (step + 1)))
    writer.execute("COMMIT")
    time.sleep(0.002)
    if step % 20 == 0:
        print(step, flush=True)
""",
}


@in_make_faults
@pytest.mark.parametrize("name", WRITERS)
def test_a_log_is_read_while_its_tool_writes_and_after_it_is_killed(name, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    program = tmp_path / "writer.py"
    program.write_text(WRITERS[name])
    writer = subprocess.Popen(
        [sys.executable, str(program), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        wait_until(lambda: find_sources(folder).runs)
        (source,) = find_sources(folder).runs
        found, cursor = {}, None

        def grows_to(count):
            nonlocal cursor
            batch = source.read(cursor)
            points_in([batch], found)
            assert not batch.replaced
            cursor = batch.cursor
            return sum(map(len, found.values())) >= count

        for count in (100, 300, 600):
            wait_until(lambda count=count: grows_to(count))
            for _ in range(5):
                writer.stdout.readline()
    finally:
        os.killpg(writer.pid, signal.SIGKILL)
        writer.wait()
    before = fingerprint(folder)
    batch = source.read(cursor)
    points_in([batch], found)

    (cold,) = find_sources(folder).runs
    assert found == points_in([cold.read(None)])
    assert [key[2] for key in sorted(found)] == ["loss", "lr"]
    for points in found.values():
        assert [step for step, _, _ in points] == list(range(len(points)))
    assert fingerprint(folder) == before
