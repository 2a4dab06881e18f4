"""Which steps of each logger can be read back, with its own reader if it has one."""

from __future__ import annotations

import importlib
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.contenders import BARE, JSON_AND_CSV, OURS, TENSORBOARD, TRACKIO, WANDB

_STEP_METRIC = "train_loss"


def steps_on_disk(name: str, logs: Path) -> set[int]:
    """Return the steps of contender `name` in `logs`."""
    return _READERS[name](logs)


def _steps_of_lines(path: Path) -> set[int]:
    import orjson

    return {orjson.loads(line)["global_step"] for line in path.read_bytes().splitlines()}


def _our_steps(logs: Path) -> set[int]:
    import orjson

    # What a user runs after a crash, and what the next session does automatically.
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

    # Generated code, opaque to the type checker.
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
    """Yield the complete entries of a .wandb file: LevelDB's log format after a header of seven bytes."""
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


_READERS: dict[str, Callable[[Path], set[int]]] = {
    BARE.name: lambda logs: _steps_of_lines(logs / "bare.jsonl"),
    JSON_AND_CSV.name: lambda logs: _steps_of_lines(logs / "metrics.jsonl"),
    OURS.name: _our_steps,
    TRACKIO.name: _trackio_steps,
    WANDB.name: _wandb_steps,
    TENSORBOARD.name: _tensorboard_steps,
}
