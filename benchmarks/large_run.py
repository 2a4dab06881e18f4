"""Run folders as the logger writes them, with any number of records or runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import VALUES
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import Heartbeat, Manifest, Session, write_manifest
from toolkit.telemetry.runfolder.process import boot_id, host_name, process_started

BEGAN = 1_700_000_000.0
SECONDS_A_STEP = 0.08
_AT_ONCE = 20_000


def steps(first: int, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield `count` steps from `first` on with ten scalars, the same for every contender."""
    for start in range(first, first + count, _AT_ONCE):
        step = np.arange(start, min(start + _AT_ONCE, first + count))
        noise = np.random.default_rng(start).normal(size=(6, len(step)))
        columns = {
            "train_loss": (0.1 + 2.0 / (1.0 + step / 50_000)) * np.exp(0.1 * noise[0]),
            "lr": 1e-4 * (0.55 + 0.45 * np.cos(step / 300_000)),
            "grad_norm": np.exp(0.3 * noise[1]),
            "samples_per_sec": 12.5 * np.exp(0.02 * noise[2]),
            "sec_per_step": SECONDS_A_STEP * np.exp(0.02 * noise[3]),
            "gpu_mem_allocated": 12.3 + 0.01 * noise[4],
            "gpu_mem_reserved": np.full(len(step), 14.0),
            "cpu_mem_rss_mb": 1234.5 + noise[5],
            "nan_inf_detected": np.zeros(len(step), dtype=bool),
            "epoch": 1 + step // 100_000,
        }
        rows = zip(*(columns[name].tolist() for name in VALUES), strict=True)
        for number, row in zip(step.tolist(), rows, strict=True):
            yield number, dict(zip(VALUES, row, strict=True))


def write_finished_run(root: Path, name: str, records: int) -> Path:
    """Write a finished run of `records` steps, and return its folder."""
    folder = _write_records(root, name, records)
    end = {"event": "end", **_envelope(records + 1), "status": "finished", "reason": "finished"}
    with (folder / METRICS_JSONL).open("ab") as file:
        file.write(encode(end))
    _end(folder, records, BEGAN + records * SECONDS_A_STEP)
    return folder


class LiveRun:
    """A run with a live process on this machine, which logs on demand."""

    def __init__(self, root: Path, name: str, records: int) -> None:
        self.records = records
        self.folder = _write_records(root, name, records)
        self._process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(7200)"])
        session = Session(
            session=1,
            started=time.time() - records * SECONDS_A_STEP,
            pid=self._process.pid,
            pid_started=process_started(self._process.pid),
            host=host_name(),
            boot_id=boot_id(),
        )
        self._manifest = _manifest(name, records, session, time.time())
        write_manifest(self.folder, self._manifest)

    def log(self, count: int) -> None:
        """Append `count` steps in one write, with a heartbeat."""
        with (self.folder / METRICS_JSONL).open("ab") as file:
            file.write(b"".join(map(_line, steps(self.records, count))))
        self.records += count
        beat = Heartbeat(time=time.time(), seq=self.records, global_step=self.records - 1)
        self._manifest = replace(self._manifest, heartbeat=beat)
        write_manifest(self.folder, self._manifest)

    def __enter__(self) -> LiveRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def write_many_runs(root: Path, count: int, *, records: int = 300, prefix: str = "run-") -> None:
    """Write `count` finished runs that differ only in name and age; names of eight characters have ids of their own."""
    root.mkdir(parents=True)
    digits = 8 - len(prefix)
    first = write_finished_run(root, f"{prefix}{0:0{digits}}", records)
    lines = (first / METRICS_JSONL).read_bytes()
    for number in range(1, count):
        name = f"{prefix}{number:0{digits}}"
        folder = root / name
        folder.mkdir()
        (folder / METRICS_JSONL).write_bytes(lines)
        _end(folder, records, BEGAN + number * 60.0)


def _end(folder: Path, records: int, ended: float) -> None:
    session = Session(
        session=1,
        started=ended - records * SECONDS_A_STEP,
        pid=1,
        host=host_name(),
        ended=ended,
        status="finished",
        reason="finished",
    )
    write_manifest(folder, _manifest(folder.name, records, session, ended))


def _write_records(root: Path, name: str, records: int) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    names = {"run_name": name, "run_id": _run_id(name), "max_steps": 2 * records}
    with (folder / METRICS_JSONL).open("wb", buffering=1 << 20) as file:
        file.write(encode({"event": "start", **_envelope(0), **names}))
        file.writelines(map(_line, steps(0, records)))
    # Measured files are in the page cache already, and nothing is being written meanwhile.
    os.sync()
    return folder


def _line(step: tuple[int, dict[str, Any]]) -> bytes:
    number, values = step
    return encode({"event": "step", **_envelope(number + 1), "global_step": number, **values})


def _envelope(seq: int) -> dict[str, Any]:
    elapsed = seq * SECONDS_A_STEP
    return {"seq": seq, "session": 1, "time": BEGAN + elapsed, "elapsed": elapsed}


def _manifest(name: str, records: int, session: Session, last_sign: float) -> Manifest:
    return Manifest(
        run_id=_run_id(name),
        name=name,
        display_name=name,
        created=session.started,
        sessions=(session,),
        heartbeat=Heartbeat(time=last_sign, seq=records, global_step=records - 1),
        summary={"max_steps": 2 * records, "train_loss": 0.5, "lr": 1e-4, "sec_per_step": SECONDS_A_STEP},
        # As the logger writes it: of a run without one the whole file is searched for evaluations.
        config={"max_steps": 2 * records},
    )


def _run_id(name: str) -> str:
    return name.encode().hex()[:16].ljust(16, "0")
