"""How many acknowledged records a SIGKILL takes along."""

from __future__ import annotations

import importlib
import mmap
import os
import random
import shutil
import signal
import sqlite3
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import ALL, BARE, JSON_AND_CSV, OURS, PEERS, TENSORBOARD, TRACKIO, WANDB
from benchmarks.report import Claim, Report

_STEP_METRIC = "train_loss"


def build(options: Options) -> Report:
    """Log at 1 kHz, kill the process after about 5000 acknowledged records, and count what is on disk."""
    records, rounds = (1000, 1) if options.quick else (5000, 5)
    contenders, notes = options.choose((BARE, OURS, *PEERS))
    figures: dict[str, list[int]] = {contender.name: [] for contender in contenders}
    # Loggers that write on a timer lose more or less with the moment, so that differs from round to round.
    moments = random.Random(5)
    for number in range(rounds):
        until_kill = records + moments.randint(-records // 10, records // 10)
        for contender in contenders:
            say(f"kill, round {number + 1} of {rounds}: {contender.title}")
            figures[contender.name].append(measure_in_child(lost_after_kill, contender.name, until_kill))

    ours = figures.get(OURS.name)
    return Report(
        name="kill_loss",
        title=f"About {records} records at 1 kHz, then SIGKILL: acknowledged records that are not on disk",
        columns=["logger", "median", "worst", "each round"],
        rows=[
            [contender.title, f"{statistics.median(lost):g}", str(max(lost)), " ".join(map(str, lost))]
            for contender in contenders
            for lost in [figures[contender.name]]
        ],
        figures=figures,
        claims=[Claim(text="acknowledged records lost", measured=sum(ours), limit=0, unit="")]
        if ours
        else [],
        notes=notes,
    )


def lost_after_kill(folder: Path, name: str, records: int) -> int:
    """Return how many of `records` acknowledged steps a killed process of contender `name` left out."""
    acknowledged = folder / "acknowledged"
    acknowledged.write_bytes(struct.pack("<q", 0))
    logs = folder / "logs"
    logs.mkdir()
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.kill_loss",
            "victim",
            name,
            str(logs),
            str(acknowledged),
            str(records),
        ],
        stdout=subprocess.DEVNULL,
    )
    while _number_in(acknowledged) < records:
        if child.poll() is not None:
            raise RuntimeError(f"the process to kill ended by itself with {child.returncode}")
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()
    # A helper process that outlives the victim may still be writing what it was handed.
    time.sleep(2.0)
    return len(set(range(1, records + 1)) - _STEPS_ON_DISK[name](logs))


def log_until_killed(name: str, logs: Path, acknowledged: Path, records: int) -> None:
    """Log `records` steps at 1 kHz, note each one that the logger took, then wait for the end."""
    with open(acknowledged, "r+b") as file, mmap.mmap(file.fileno(), 8) as noted:
        logger = ALL[name].open(logs)
        due = time.perf_counter()
        for step in range(1, records + 1):
            logger.log(step)
            noted[:] = struct.pack("<q", step)
            due += 0.001
            time.sleep(max(0.0, due - time.perf_counter()))
        time.sleep(60)


def _number_in(path: Path) -> int:
    return int(struct.unpack("<q", path.read_bytes())[0])


def _steps_of_lines(path: Path) -> set[int]:
    import orjson

    return {orjson.loads(line)["global_step"] for line in path.read_bytes().splitlines()}


def _our_steps(logs: Path) -> set[int]:
    import orjson

    # What a person runs after a crash, and what the next session or reader does by itself.
    telemetry = shutil.which("telemetry", path=str(Path(sys.executable).parent)) or "telemetry"
    subprocess.run([telemetry, "repair", str(logs / "bench")], check=True, stdout=subprocess.DEVNULL)
    records = map(orjson.loads, (logs / "bench" / "metrics.jsonl").read_bytes().splitlines())
    return {record["global_step"] for record in records if record["event"] == "step"}


def _trackio_steps(logs: Path) -> set[int]:
    steps: set[int] = set()
    for database in logs.rglob("*.db"):
        with sqlite3.connect(database) as connection:
            steps.update(step for (step,) in connection.execute("SELECT step FROM metrics"))
    return steps


def _wandb_steps(logs: Path) -> set[int]:
    import orjson

    # Generated code, which a type checker cannot see into.
    protobuf: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    steps: set[int] = set()
    for path in logs.rglob("*.wandb"):
        for data in _wandb_entries(path.read_bytes()):
            record = protobuf.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
                if _STEP_METRIC in items:
                    steps.add(orjson.loads(items["_step"]))
    return steps


def _wandb_entries(data: bytes) -> Iterator[bytes]:
    """Yield the complete entries of a .wandb file: LevelDB's log format behind a header of seven bytes."""
    block, header, whole, last = 32768, 7, 1, 4
    position, parts = 7, b""
    while position + header <= len(data):
        if block - position % block < header:
            position += block - position % block
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        position += header
        if kind == 0 or position + length > len(data):
            return
        parts += data[position : position + length]
        position += length
        if kind in (whole, last):
            yield parts
            parts = b""


def _tensorboard_steps(logs: Path) -> set[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(logs), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return {event.step for event in events.Scalars(_STEP_METRIC)}


_STEPS_ON_DISK: dict[str, Callable[[Path], set[int]]] = {
    BARE.name: lambda logs: _steps_of_lines(logs / "bare.jsonl"),
    JSON_AND_CSV.name: lambda logs: _steps_of_lines(logs / "metrics.jsonl"),
    OURS.name: _our_steps,
    TRACKIO.name: _trackio_steps,
    WANDB.name: _wandb_steps,
    TENSORBOARD.name: _tensorboard_steps,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["victim"]:
        log_until_killed(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
        os._exit(0)
    run_alone(build)
