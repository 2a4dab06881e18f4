"""A day of training at two steps per second, simulated in a minute or two with a manual clock."""

from __future__ import annotations

import gc
import json
import math
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import psutil

from tests.leftovers import journals_of_runs_below
from tests.load.long_run import held_by
from tests.project.markdown import ROOT
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.runfolder.control import write_request
from toolkit.telemetry.runfolder.layout import METRICS_CSV, METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import read_manifest

SECONDS_A_STEP = 0.5
STEPS_AN_HOUR = int(3600 / SECONDS_A_STEP)
SYSTEM_EVERY_S = 5.0
_EVAL_EVERY = 1_000
_CHECKPOINT_EVERY = 3_600
_PARTS_A_SESSION = 6
_NAME = "day"


class Day:
    """The run of one day. Periodic threads run when the simulated clock advances."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        # In the past: a watching dashboard must not see a run from the future.
        self.clock = ManualClock(time.time() - 86_400.0 * 2)
        self.began = self.clock.monotonic()
        self.step = 0
        self.sessions = 0
        self.changes = 0
        self.checkpoint = log_dir.parent / "model.safetensors"
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        self.checkpoint.write_bytes(bytes(1000))
        self._begin()

    def _begin(self) -> None:
        self.log = TelemetryLogger(
            _NAME,
            log_dir=self.log_dir,
            resume=True,
            one_logger_file=True,
            system_every=SYSTEM_EVERY_S,
            clock=self.clock,
            close_timeout=60.0,
        )
        self.sessions += 1
        run = self.log._run
        assert run is not None
        # They use the real clock in the background, by which this day lasts a minute.
        run.periodic.close(5.0)
        run._watchman.close(5.0)
        assert run._sampling is not None
        run._sampling.stop(5.0)
        # The GPU sampler released its driver when its thread ended; these two have nothing to release.
        sources = run._sampling._sampling._sources
        self._sources = [source for source in sources if source.sampler.name in ("host", "disk")]
        for source in self._sources:
            source._ended = False
        self._run = run
        self.log.log_start(training={"max_steps": 24 * STEPS_AN_HOUR, "batch_size": 8})
        self.log.declare_action("save")

    def live_on(self, steps: int) -> None:
        """Train for `steps`, with a request for another `log_every` half way."""
        clock, log, run = self.clock, self.log, self._run
        for number in range(steps):
            clock.advance(SECONDS_A_STEP)
            step = self.step
            if step % 5 == 0:
                for source in self._sources:
                    source._ask()
            with log.span("forward"):
                pass
            log.log_step(step, train_loss=_loss(step), lr=1e-4, grad_norm=1.0 + 0.1 * math.sin(step))
            if step % _EVAL_EVERY == 0:
                with log.span("validation", at=step):
                    clock.advance(2.0)
                log.log_eval(step, val_loss=0.5 + 1.0 / (1.0 + step / 1e4))
            if step % _CHECKPOINT_EVERY == _CHECKPOINT_EVERY - 1:
                with log.span("checkpoint_save"):
                    clock.advance(3.0)
                log.log_checkpoint(step, self.checkpoint)
            if number == steps // 2:
                self._ask_for_another_interval()
            run.periodic.tick()
            run._watchman.tick()
            self.step += 1

    def rest(self) -> None:
        """Write everything that was logged."""
        if not self.log.flush(120.0):
            raise TimeoutError("the records did not reach the disk within two minutes")

    def begin_again(self) -> None:
        """End the session as if the job's time were over, and resume in another."""
        self.close()
        self.clock.advance(60.0)
        self._begin()

    def close(self) -> None:
        """End it."""
        self.log.close()

    def _ask_for_another_interval(self) -> None:
        folder = self.log.run_folder
        assert folder is not None
        self.changes += 1
        write_request(folder, log_every=10 + self.changes % 2, now=self.clock.wall())


def _loss(step: int) -> float:
    """Return a falling loss with a spike every 15 minutes, for the detectors."""
    return 1.0 / (1.0 + step / 2e4) + 0.05 * math.sin(step / 7.0) + (8.0 if step % 1800 == 1799 else 0.0)


class Follower:
    """A dashboard store in its own process that reads the run on demand and reports its resources."""

    def __init__(self, log_dir: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.load.day", str(log_dir)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def look(self) -> dict[str, Any]:
        """Read the run, and return what was seen and the resources held."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("look\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        """Let it go."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(30.0)


def follow(log_dir: Path) -> None:
    """Read the newest run for each input line, as an open overview page does."""
    from toolkit.telemetry.runs.sources.local_store import LocalStore

    store = LocalStore([log_dir], cache_dir=None)
    process = psutil.Process()
    for _ in sys.stdin:
        key = store.list_runs().cards[0].key
        health = store.refresh(key, wait_s=60.0)
        for metric in store.metrics(key)[:8]:
            store.series(key, metric.name)
        while store.examine(key, wait_s=60.0) < 1.0:
            pass
        spent = store.time_spent(key, wait_s=60.0)
        spans = store.spans(key, wait_s=60.0)
        store.events(key, limit=200)
        gc.collect()
        seen = {
            "records": health.records,
            "findings": len(store.findings(key)),
            "spans": len(spans.start),
            "ledger_part": spent.fraction,
        }
        print(json.dumps({**seen, **held_by(process)}), flush=True)


def live(
    folder: Path,
    parts: int,
    *,
    steps: int = STEPS_AN_HOUR,
    parts_a_session: int = _PARTS_A_SESSION,
) -> dict[str, Any]:
    """Simulate `parts` of a day, `steps` each; return the resources after each and the files at the end."""
    log_dir = folder / "logs"
    process = psutil.Process()
    tracemalloc.start(1)
    day, follower = Day(log_dir), Follower(log_dir)
    points = []
    try:
        for part in range(parts):
            day.live_on(steps)
            day.rest()
            gc.collect()
            traced_kb = tracemalloc.get_traced_memory()[0] / 1024
            points.append(
                {"part": part + 1, "traced_kb": traced_kb, **held_by(process), "dashboard": follower.look()}
            )
            if (part + 1) % parts_a_session == 0 and part + 1 < parts:
                day.begin_again()
        day.close()
    finally:
        tracemalloc.stop()
        follower.end()
    run = next(path for path in log_dir.iterdir())
    counts: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    seq, out_of_order = -1, 0
    with open(run / METRICS_JSONL, "rb") as file:
        for line in file:
            record = orjson.loads(line)
            counts[record["event"]] += 1
            out_of_order += record["seq"] != seq + 1
            seq = record["seq"]
            if record["event"] == "control_change":
                statuses[record["status"]] += 1
    return {
        "lived_s": day.clock.monotonic() - day.began,
        "steps": day.step,
        "sessions": day.sessions,
        "asked": day.changes,
        "answers": dict(statuses),
        "counts": dict(counts),
        "out_of_order": out_of_order,
        "points": points,
        "bytes": {path.name: path.stat().st_size for path in run.iterdir()},
        "rows": sum(1 for _ in open(run / METRICS_CSV, "rb")) - 1,
        "sessions_in_manifest": len(read_manifest(run).sessions),
        "telemetry_errors": day.log.guard.total,
        "runs": sum(1 for _ in log_dir.iterdir()),
        "left_over": len(journals_of_runs_below(log_dir)),
    }


if __name__ == "__main__":
    follow(Path(sys.argv[1]))
