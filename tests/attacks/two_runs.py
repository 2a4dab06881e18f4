"""Two runs to view and control: a live one and a finished one."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess

from tests.made_runs import write_run

TAKES = {
    "log_every_now": 20,
    "log_every": [5, 2000],
    "actions": ["save", "sample", "save_and_stop", "stop"],
    "knobs": {"lr_scale": {"type": "float", "low": 0.1, "high": 10.0, "value": None}},
}


@contextlib.contextmanager
def two_runs(folder):
    """Write the runs `alive` and `ended` into `folder / "logs"`; the first one's process lives as long as the block."""
    logs = folder / "logs"
    logs.mkdir()
    child = subprocess.Popen(["sleep", "3600"])
    try:
        write_run(logs, "alive", status="running", pid=child.pid, control=TAKES)
        write_run(logs, "ended", status="finished", control=TAKES)
        yield logs
    finally:
        child.kill()
        child.wait()


def snapshot(folder):
    """Return every file below `folder` with what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
