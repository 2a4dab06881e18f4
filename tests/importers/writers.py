"""Programs that log with the real libraries until they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

WRITERS = {
    "tensorboard": """
import sys, time
from tensorboardX import SummaryWriter
writer = SummaryWriter(sys.argv[1], flush_secs=0)
for step in range(10**9):
    for tag in ("loss", "lr"):
        writer.add_scalar(tag, 1 / (step + 1), step)
    time.sleep(0.001)
    if step % 20 == 0:
        writer.flush()
""",
    "wandb": """
import os, sys, time
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=sys.argv[1])
import wandb
run = wandb.init(project="live", settings=wandb.Settings(console="off", x_disable_stats=True))
for step in range(10**9):
    run.log({"loss": 1 / (step + 1), "lr": 0.1})
    time.sleep(0.001)
""",
    "trackio": """
import os, sys, time
os.environ["TRACKIO_DIR"] = sys.argv[1]
import trackio
trackio.init(project="live", name="one", embed=False, auto_log_cpu=False)
for step in range(10**9):
    trackio.log({"loss": 1 / (step + 1), "lr": 0.1})
    time.sleep(0.002)
""",
    "mlflow": """
import os, sys
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
import mlflow
mlflow.set_tracking_uri("file://" + sys.argv[1] + "/mlruns")
mlflow.start_run()
for step in range(10**9):
    mlflow.log_metrics({"loss": 1 / (step + 1), "lr": 0.1}, step=step)
""",
    "dvclive": """
import sys
from dvclive import Live
live = Live(sys.argv[1] + "/dvclive", save_dvc_exp=False, dvcyaml=None, report=None, monitor_system=False)
for step in range(10**9):
    live.log_metric("loss", 1 / (step + 1))
    live.log_metric("lr", 0.1)
    live.next_step()
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
""",
}
_SAY_HOW_FAR = """    if step % 20 == 0:
        print(step, flush=True)
"""
WRITERS = {name: program + _SAY_HOW_FAR for name, program in WRITERS.items()}
WRITERS["torch"] = WRITERS["tensorboard"].replace("from tensorboardX", "from torch.utils.tensorboard")
WRITERS["mlflow_db"] = WRITERS["mlflow"].replace(
    '"file://" + sys.argv[1] + "/mlruns"', '"sqlite:///" + sys.argv[1] + "/mlflow.db"'
)
_FAST = WRITERS["ai-toolkit"].replace("sleep(0.002)", "sleep(0.0005)")
_SETTING = 'execute("PRAGMA journal_mode = WAL")'
WRITERS["checkpoints"] = _FAST.replace(
    _SETTING, f'{_SETTING}\nwriter.execute("PRAGMA wal_autocheckpoint = 15")'
)
WRITERS["rollback"] = _FAST.replace(
    _SETTING, 'execute("PRAGMA journal_mode = DELETE")\nwriter.execute("PRAGMA synchronous = OFF")'
)

PACKAGES = {
    "tensorboard": "tensorboardX",
    **dict.fromkeys(("ai-toolkit", "checkpoints", "rollback"), "sqlite3"),
    "mlflow_db": "sqlalchemy",
}
"""What a writer needs, where that is not its own name."""
ROWS = frozenset({"ai-toolkit", "checkpoints", "rollback", "mlflow_db", "trackio"})
"""Databases: rows are read once, not bytes."""
# tensorboardX has a queue between the call and the file.
FLUSHED = frozenset(WRITERS) - {"wandb", "trackio", "tensorboard"}
"""What these print as written is in the file. W&B and Trackio write later, in a thread or a process of their own."""


class Writer:
    """A program that writes a log until it is killed."""

    def __init__(self, name, folder):
        folder.mkdir()
        program = folder.with_suffix(".py")
        program.write_text(WRITERS[name])
        self.errors = folder.with_suffix(".err")
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(program), str(folder)],
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self.last = -1
        """The last step that it said to have written."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def wait_for_more(self):
        """Return once it has written 20 more steps."""
        for line in self._process.stdout:
            if line.strip().isdigit():
                self.last = int(line)
                return
        raise AssertionError(f"the writer ended: {self.errors.read_text()[-2000:]}")

    def kill(self):
        """Kill it, and every process that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        for line in self._process.stdout:
            if line.strip().isdigit() and line.endswith(b"\n"):
                self.last = int(line)
        self._process.wait()
