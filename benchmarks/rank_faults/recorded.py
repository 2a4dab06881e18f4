"""The step times of all ranks of a run in a short form, so that other rules can be tried on them later."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_FIELDS: Final = {
    "time/data_loading": "d",
    "time/forward": "f",
    "time/backward": "b",
    "time/optimizer_update": "o",
    "time/checkpoint_save_sync": "c",
    "time/write_predictions": "w",
    "sec_per_step": "s",
}
"""In microseconds."""


def keep(name: str, folder: Path, struck_at: float | None, path: Path) -> None:
    """Append the steps of a run to a file."""
    ranks: dict[int, dict[str, list[int]]] = {}
    for file in (folder / "metrics.jsonl", *sorted((folder / "ranks").glob("*.jsonl"))):
        mine: dict[str, list[int]] = {short: [] for short in (*_FIELDS.values(), "step", "time")}
        for line in file.read_bytes().splitlines():
            record = json.loads(line)
            if record.get("event") == "step":
                mine["step"].append(record["global_step"])
                mine["time"].append(round(1000 * (record["time"] - (struck_at or 0.0))))
                for field, short in _FIELDS.items():
                    mine[short].append(round(1e6 * record.get(field, 0.0)))
        ranks[int(file.stem) if file.stem.isdigit() else 0] = mine
    with gzip.open(path, "at", encoding="utf-8") as out:
        out.write(json.dumps({"name": name, "ranks": ranks}, separators=(",", ":")) + "\n")


def recorded_steps(path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the name of each kept run, and its step records of all ranks in the order of time."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            about = json.loads(line)
            rows = []
            for rank, mine in about["ranks"].items():
                for at, step in enumerate(mine["step"]):
                    fields = {
                        field: mine[short][at] / 1e6 for field, short in _FIELDS.items() if mine[short][at]
                    }
                    head = {
                        "event": "step",
                        "session": 1,
                        "time": mine["time"][at] / 1e3,
                        "global_step": step,
                    }
                    rows.append({**head, **fields, **({"rank": int(rank)} if int(rank) else {})})
            yield about["name"], sorted(rows, key=lambda row: (row["time"], row["global_step"]))
