"""Which acknowledged records are lost by a SIGKILL."""

from __future__ import annotations

import importlib
import mmap
import random
import signal
import sqlite3
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import ALL, BARE, JSON_AND_CSV, OURS, PEERS, TENSORBOARD, TRACKIO, WANDB
from benchmarks.report import Claim, Report
from toolkit.telemetry.importers.framing import leveldb_log

_PAUSE_S: Final = 0.001
_STEP_METRIC: Final = "train_loss"
# Shared from the logging process to the watching one: the last step whose call has returned.
_STEP: Final = struct.Struct("<q")


def build(options: Options) -> Report:
    """Kill each logger after about 5000 records at 1 kHz."""
    records, rounds = (1000, 1) if options.quick else (5000, 3)
    contenders, notes = options.choose((BARE, OURS, *PEERS))
    killed: dict[str, list[int]] = {contender.name: [] for contender in contenders}
    # Loggers that write on a timer lose more or less depending on the time, so it varies between rounds.
    times = random.Random(5)
    for number in range(rounds):
        until_kill = records + times.randint(-records // 10, records // 10)
        for contender in contenders:
            say(f"kill, round {number + 1} of {rounds}: {contender.title}")
            killed[contender.name].append(measure_in_child(lost_after_kill, contender.name, until_kill))
    ours = [
        Claim(text="records lost by a SIGKILL", measured=sum(lost), limit=0, unit="")
        for name, lost in killed.items()
        if name == OURS.name
    ]
    return Report(
        name="lost_records",
        title=f"Acknowledged records that are not on disk after a SIGKILL (about {records} at 1 kHz)",
        columns=["logger", "mean", "worst"],
        rows=[
            [contender.title, f"{statistics.fmean(lost):.0f}", f"{max(lost)}"]
            for contender in contenders
            for lost in [killed[contender.name]]
        ],
        figures={"killed": killed},
        claims=ours,
        notes=notes,
    )


def lost_after_kill(folder: Path, name: str, records: int) -> int:
    """Return how many of `records` acknowledged steps are missing after contender `name` was killed."""
    logs, noted = folder / "logs", folder / "noted"
    logs.mkdir()
    noted.write_bytes(bytes(_STEP.size))
    command = [sys.executable, "-m", "benchmarks.lost_records", "victim", name, str(logs), str(noted)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while _last_step(noted) < records:
            if child.poll() is not None:
                raise RuntimeError(f"the process ended by itself with {child.returncode}")
            time.sleep(_PAUSE_S)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    # A helper process that outlives the victim may still be writing.
    time.sleep(2.0)
    return len(set(range(1, _last_step(noted) + 1)) - _READERS[name](logs))


def log_until_killed(name: str, logs: Path, noted: Path) -> None:
    """Log a step every millisecond, and note each call that has returned."""
    with open(noted, "r+b") as file, mmap.mmap(file.fileno(), 0) as notes:
        logger = ALL[name].open(logs)
        step, due = 0, time.perf_counter()
        while True:
            step += 1
            logger.log(step)
            notes[:] = _STEP.pack(step)
            due = max(due + _PAUSE_S, time.perf_counter() - _PAUSE_S)
            time.sleep(max(0.0, due - time.perf_counter()))


def _last_step(noted: Path) -> int:
    return int(_STEP.unpack(noted.read_bytes())[0])


# ---------------------------------------------------------------- what can be read back, by the logger's own reader


def _steps_of_lines(path: Path) -> set[int]:
    import orjson

    records = map(orjson.loads, path.read_bytes().splitlines())
    return {record["global_step"] for record in records if record.get("event", "step") == "step"}


def _our_steps(logs: Path) -> set[int]:
    # What a user runs after a crash, and what the next session does automatically.
    repair = [sys.executable, "-m", "toolkit.telemetry.cli", "repair", str(logs / "bench")]
    subprocess.run(repair, check=True, stdout=subprocess.DEVNULL)
    return _steps_of_lines(logs / "bench" / "metrics.jsonl")


def _trackio_steps(logs: Path) -> set[int]:
    found = [sqlite3.connect(file).execute("SELECT step FROM metrics") for file in logs.rglob("*.db")]
    return {step for rows in found for (step,) in rows}


def _wandb_steps(logs: Path) -> set[int]:
    import orjson

    # Generated code, opaque to the type checker.
    protobuf: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    steps: set[int] = set()
    for path in logs.rglob("*.wandb"):
        for data in leveldb_log.read(path.read_bytes(), 0).records:
            record = protobuf.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
                if _STEP_METRIC in items:
                    steps.add(orjson.loads(items["_step"]))
    return steps


def _tensorboard_steps(logs: Path) -> set[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(logs), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    return {event.step for event in events.Scalars(_STEP_METRIC)}


_READERS: dict[str, Callable[[Path], set[int]]] = {
    BARE.name: lambda logs: _steps_of_lines(logs / "bare.jsonl"),
    JSON_AND_CSV.name: lambda logs: _steps_of_lines(logs / "metrics.jsonl"),
    OURS.name: _our_steps,
    TRACKIO.name: _trackio_steps,
    WANDB.name: _wandb_steps,
    TENSORBOARD.name: _tensorboard_steps,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["victim"]:
        log_until_killed(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    run_alone(build)
