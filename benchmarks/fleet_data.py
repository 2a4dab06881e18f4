"""What a fleet has: runs of a size, one with very many ranks, and a list of many thousands."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.large_run import BEGAN, write_finished_run
from toolkit.fleet.binary_form import native_block
from toolkit.fleet.engine import Engine
from toolkit.runfolder.codec import encode
from toolkit.runfolder.layout import rank_file
from toolkit.runfolder.manifest import read_manifest, write_manifest

SLOW_RANK: Final = 617
RANKED: Final = "run-rank"
_RUN_COLUMNS: Final = {
    "project": "String",
    "run_id": "String",
    "version": "UInt64",
    "name": "String",
    "node": "String",
    "folder": "String",
    "status": "String",
    "why": "String",
    "sure": "UInt8",
    "heartbeat": "Float64",
    "step": "Float64",
    "manifest": "String",
    "trend": "Array(Float32)",
    "behind": "UInt64",
    "created": "UInt16",
    "received": "UInt32",
}
_PROJECTS: Final = ("vision", "speech", "language", "robots", "weather")
_STATUSES: Final = ("finished", "finished", "finished", "failed", "stopped")


def write_ranked_run(log_dir: Path, ranks: int, records: int) -> Path:
    """Write a finished run with a record file for each rank; rank 617 takes a third longer than the others."""
    folder = write_finished_run(log_dir, RANKED, records)
    (folder / "ranks").mkdir()
    draw = random.Random(0)
    for rank in range(1, ranks):
        slow = 1.33 if rank == SLOW_RANK else 1.0
        lines = [
            encode(
                {
                    "event": "step",
                    "seq": step,
                    "session": 1,
                    "rank": rank,
                    "time": BEGAN + step * 0.08,
                    "elapsed": step * 0.08,
                    "global_step": step,
                    "train_loss": 1.0 / (step + 1),
                    "sec_per_step": 0.08 * slow * draw.uniform(0.97, 1.03),
                }
            )
            for step in range(records)
        ]
        rank_file(folder, rank).write_bytes(b"".join(lines))
    return folder


def rename(folder: Path, name: str) -> None:
    """Give a run another display name."""
    write_manifest(folder, replace(read_manifest(folder), display_name=name))


def copy_runs(engine: Engine, count: int, *, prefix: str = "copy") -> None:
    """Insert the manifest of a run that the engine has `count` times into `runs`, with other names, ids and ages."""
    as_numbers = {"created": "toUInt16(created)", "received": "toUInt32(toUInt32(received) - 3600)"}
    columns = ", ".join(as_numbers.get(name, name) for name in _RUN_COLUMNS)
    kinds = [kind if name != "manifest" else "Bytes" for name, kind in _RUN_COLUMNS.items()]
    (found,) = engine.rows(f"SELECT {columns} FROM runs WHERE status = 'finished' LIMIT 1", *kinds)
    row = dict(zip(_RUN_COLUMNS, found, strict=True))
    old = row["name"]
    manifest: bytes = row["manifest"]
    draw = random.Random(0)
    values: dict[str, list[object]] = {name: [] for name in _RUN_COLUMNS}
    for number in range(count):
        name = f"{prefix}-{number:05}"
        project = _PROJECTS[number % len(_PROJECTS)]
        status = _STATUSES[number % len(_STATUSES)]
        low = draw.uniform(0.1, 1.0)
        changed = {
            "project": project,
            "run_id": f"{prefix}{number:012}",
            "name": name,
            "folder": f"/scratch/logs/{name}",
            "node": f"node{number % 64:02}",
            "status": status,
            "heartbeat": row["heartbeat"] + number,
            "manifest": manifest.replace(f'"{old}"'.encode(), f'"{name}"'.encode())
            .replace(b'"status": "finished"', f'"status": "{status}"'.encode())
            .replace(b'"project": ""', f'"project": "{project}"'.encode()),
            "trend": [low + 2.0 / (1 + point) for point in range(40)],
        }
        for column, value in {**row, **changed}.items():
            values[column].append(value.encode() if isinstance(value, str) else value)
    kinds_by_name = {**_RUN_COLUMNS, "created": "Date", "received": "DateTime"}
    engine.insert(
        "runs",
        tuple(_RUN_COLUMNS),
        native_block([(name, kinds_by_name[name], values[name]) for name in _RUN_COLUMNS]),
    )
