"""Runs that grow while someone looks: a real training loop in its own process, and one whose records a test writes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from tests.faults.children import Child
from tests.leftovers import remove_journals_of_runs_below
from tests.made_runs import append, write_run
from tests.waiting import wait_until
from toolkit.telemetry.runfolder.manifest import Heartbeat, read_manifest, write_manifest

_TRAINING = """
folder, name = sys.argv[1:]
log = TelemetryLogger(name, log_dir=folder, log_every=5)
log.declare_action("save")
log.declare_action("stop")
log.log_start({"lr": 1e-3}, training={"max_steps": 100_000})
saved = os.path.join(log.run_folder, "weights.bin")
step, why = 0, None
while why is None:
    log.log_step(step, train_loss=2.0 / (1 + step / 200), lr=1e-3, grad_norm=1.0, sec_per_step=0.05)
    for request in log.take_requests():
        if request.name in ("save", "save_and_stop"):
            with open(saved, "wb") as file:
                file.write(bytes(1000))
            log.log_checkpoint(step, saved)
    why = "stopped" if log.should_stop else None
    step += 1
    time.sleep(0.05)
log.close(why)
"""


class Training:
    """A training loop that logs twenty steps a second until it is asked to stop."""

    def __init__(self, root: Path, name: str, cwd: Path) -> None:
        there = set(root.glob("*/run.json"))
        self.child = Child(_TRAINING, root, name, cwd=cwd)
        new = wait_until(lambda: set(root.glob("*/run.json")) - there, self.child.process)
        self.folder = new.pop().parent

    @property
    def manifest(self):
        return read_manifest(self.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child.process.poll() is None:
            self.child.kill()
        self.child.process.communicate()
        remove_journals_of_runs_below(self.folder)


class Growing:
    """A run that gets a record every tenth of a second, in the name of a process that only sleeps."""

    def __init__(self, root: Path, name: str, *, steps: int = 500, **more) -> None:
        self._sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        self._last = steps - 1
        self.folder = write_run(
            root,
            name,
            curves={"train_loss": _loss, "val_loss": lambda step: _loss(step) + 0.3, "lr": lambda step: 1e-4},
            sessions=(range(steps),),
            status="running",
            pid=self._sleeper.pid,
            control={"log_every": {"low": 5, "high": 2000}, "log_every_now": 10, "actions": [], "knobs": {}},
            **more,
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._grow)

    def _grow(self) -> None:
        manifest = read_manifest(self.folder)
        while not self._ended.wait(0.1):
            self._last += 1
            step, now = self._last, time.time()
            loss = {"train_loss": _loss(step), "val_loss": _loss(step) + 0.3, "lr": 1e-4}
            known = {"seq": step + 2, "session": 1, "time": now, "elapsed": step * 0.1}
            append(self.folder, [{"event": "step", **known, "global_step": step, **loss}])
            beat = Heartbeat(time=now, seq=step + 2, global_step=step)
            write_manifest(self.folder, replace(manifest, heartbeat=beat))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
        self._sleeper.kill()
        self._sleeper.wait()


def _loss(step: int) -> float:
    return 2.0 / (1.0 + step / 50.0) + 0.05 * (step % 7)
