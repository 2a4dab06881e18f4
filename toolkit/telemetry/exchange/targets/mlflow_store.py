"""A run as an MLflow file store (`mlruns`), which MLflow opens without a server; MLflow itself is not needed."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from toolkit.telemetry.exchange.exported_run import ExportedRun
from toolkit.telemetry.importers.source import flattened
from toolkit.telemetry.runfolder.layout import make_folders
from toolkit.telemetry.runfolder.safefile import open_to_write, replace_file

LOSES: Final = (
    "times are whole milliseconds; a point without a step gets the last one; a run without an end is RUNNING; "
    "images, texts and spans are not exported"
)
_NOT_ALLOWED: Final = re.compile(r"[^\w\-. /]")
_MAX_PARAM: Final = 6_000
_MAX_NAME: Final = 200
_STATUS: Final = {"finished": 3, "failed": 4, "stopped": 5}
_KEPT_LINES: Final = 100_000


def write(runs: Sequence[ExportedRun], out: Path) -> int:
    """Write a store with an experiment for each project; return the points."""
    points = 0
    ids: dict[str, str] = {}
    for run in runs:
        experiment = ids.get(run.project)
        if experiment is None:
            experiment = ids[run.project] = str(int(_digest(run.project), 16) % 10**18)
            _write_experiment(out / experiment, experiment, run)
        points += _write_run(out / experiment, experiment, run)
    return points


def _write_experiment(folder: Path, experiment: str, run: ExportedRun) -> None:
    make_folders(folder, 0o700)
    at = _milliseconds(run.started)
    about = {
        "artifact_location": f"mlruns/{experiment}",
        "creation_time": at,
        "experiment_id": experiment,
        "last_update_time": at,
        "lifecycle_stage": "active",
        "name": run.project,
    }
    _write_yaml(folder / "meta.yaml", about)


def _write_run(experiment_folder: Path, experiment: str, run: ExportedRun) -> int:
    run_id = _digest(run.run_id)
    folder = experiment_folder / run_id
    for name in ("artifacts", "metrics", "params", "tags"):
        make_folders(folder / name, 0o700)
    about: dict[str, Any] = {
        "artifact_uri": f"mlruns/{experiment}/{run_id}/artifacts",
        "end_time": _milliseconds(run.ended) if run.status in _STATUS else None,
        "entry_point_name": "",
        "experiment_id": experiment,
        "lifecycle_stage": "active",
        "run_id": run_id,
        "run_name": run.name,
        "run_uuid": run_id,
        "source_name": "",
        "source_type": 4,
        "source_version": "",
        "start_time": _milliseconds(run.started),
        # A run without an end stays RUNNING in MLflow, too.
        "status": _STATUS.get(run.status, 1),
        "tags": [],
        "user_id": "",
    }
    _write_yaml(folder / "meta.yaml", about)
    tags = {"mlflow.runName": run.name, **{f"tag.{number}": tag for number, tag in enumerate(run.tags)}}
    taken: set[str] = set()
    for name, value in tags.items():
        _write_value(folder / "tags", name, value, taken)
    taken = set()
    for name, value in flattened(run.config):
        _write_value(folder / "params", name, value, taken)
    return _write_metrics(folder / "metrics", run)


def _write_metrics(folder: Path, run: ExportedRun) -> int:
    names: dict[str, str] = {}
    for *_, values in run.scalars():
        for name in values:
            names.setdefault(name, "")
    used: set[str] = set()
    for name in names:
        names[name] = _free(_allowed(name), used, {_allowed(other) for other in names if other != name})
        if names[name] != name:
            run.notes.append(f"the metric {name[:100]!r} is {names[name]!r} in MLflow")
    waiting: dict[str, list[str]] = {}
    points = step = lines = 0
    for _, _, own_step, timestamp, values in run.scalars():
        step = step if own_step is None else own_step
        at = _milliseconds(math.nan if timestamp is None else timestamp)
        for name, value in values.items():
            waiting.setdefault(name, []).append(f"{at} {value!r} {step}\n")
            points += 1
            lines += 1
        if lines >= _KEPT_LINES:
            _append(folder, names, waiting)
            lines = 0
    _append(folder, names, waiting)
    return points


def _append(folder: Path, names: dict[str, str], waiting: dict[str, list[str]]) -> None:
    for name, lines in waiting.items():
        path = folder.joinpath(*names[name].split("/"))
        make_folders(path.parent, 0o700)
        with open(open_to_write(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8") as file:
            file.writelines(lines)
    waiting.clear()


def _allowed(name: str) -> str:
    """Return `name` as MLflow takes it: a relative path of plain characters."""
    parts = [part.strip(". ") for part in _NOT_ALLOWED.sub("_", name).split("/")]
    return "/".join(part[:_MAX_NAME] for part in parts if part)[:_MAX_NAME] or "metric"


def _free(name: str, used: set[str], others: set[str]) -> str:
    """Return `name`, or one like it where another has it or needs it as a folder."""
    found, number = name, 1
    while found in used or any(other.startswith(f"{found}/") for other in (*used, *others)):
        number += 1
        found = f"{name}_{number}"
    used.add(found)
    return found


def _write_value(folder: Path, name: str, value: Any, taken: set[str]) -> None:
    path = folder.joinpath(*_free(_allowed(name).replace("/", "."), taken, set()).split("/"))
    replace_file(path, str(value)[:_MAX_PARAM].encode("utf-8", "backslashreplace"))


def _write_yaml(path: Path, about: dict[str, Any]) -> None:
    text: str = yaml.safe_dump(about, default_flow_style=False, allow_unicode=True)
    replace_file(path, text.encode("utf-8"))


def _milliseconds(timestamp: float) -> int:
    return round(timestamp * 1000) if math.isfinite(timestamp) else 0


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
