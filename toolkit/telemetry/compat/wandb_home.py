"""Where a run that a W&B script begins is logged, and which earlier one it goes on with."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from toolkit.core.ranks import find_rank
from toolkit.runfolder.codec import RecordError, decode
from toolkit.runfolder.layout import METRICS_JSONL
from toolkit.runfolder.manifest import Manifest, ManifestError, read_manifest
from toolkit.runfolder.safefile import open_regular
from toolkit.telemetry.compat.stand_ins import say_once
from toolkit.telemetry.compat.wandb_identity import About
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.options import TelemetryOptions

_LOOKED_THROUGH_BYTES: Final = 1024 * 1024
"""From the end of the records back: some record in there has a step."""
_BY_ID: Final = ("allow", "must")
_BY_NAME: Final = (True, "auto")
"""W&B goes on with the last run of the folder then, unless that run finished."""
_SETTINGS: Final = {
    # init's name: the settings' name, and the variable.
    "entity": ("entity", "WANDB_ENTITY"),
    "project": ("project", "WANDB_PROJECT"),
    "dir": ("root_dir", "WANDB_DIR"),
    "id": ("run_id", "WANDB_RUN_ID"),
    "name": ("run_name", "WANDB_NAME"),
    "notes": ("run_notes", "WANDB_NOTES"),
    "tags": ("run_tags", "WANDB_TAGS"),
    "group": ("run_group", "WANDB_RUN_GROUP"),
    "job_type": ("run_job_type", "WANDB_JOB_TYPE"),
    "mode": ("mode", "WANDB_MODE"),
    "reinit": ("reinit", None),
    "resume": ("resume", "WANDB_RESUME"),
}


def asked_for(given: Mapping[str, Any], settings: Any) -> dict[str, Any]:
    """Return what is asked of a run: by the call, else by its settings, else by W&B's variables."""
    stated = settings if isinstance(settings, Mapping) else getattr(settings, "__dict__", {})
    asked: dict[str, Any] = {}
    for name, (setting, variable) in _SETTINGS.items():
        value = given[name] if given[name] is not None else stated.get(setting)
        asked[name] = value if value is not None or variable is None else os.environ.get(variable) or None
    return asked


def home_of(asked: Mapping[str, Any], telemetry: Mapping[str, Any]) -> tuple[About, TelemetryOptions]:
    """Return what a run is called and whose it is, and how it is logged; with `telemetry`, which wins.

    Raises:
        OptionsError: an option of `telemetry` is wrong.
    """
    switched_off = os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes")
    tags = asked["tags"] or ()
    tags = tags.split(",") if isinstance(tags, str) else tags
    project, by_name = asked["project"], asked["resume"] in _BY_NAME
    name = asked["name"] or project or "run"
    # The ranks of one run find each other by its name, and the clocks of two of them need not agree.
    if not asked["name"] and not asked["id"] and not by_name and find_rank().world_size == 1:
        name = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    options = TelemetryOptions.from_mapping(
        {
            "enabled": asked["mode"] != "disabled" and not switched_off,
            "log_dir": os.path.join(os.fspath(asked["dir"] or "."), "logs"),
            # W&B keeps every row.
            "log_every": 1,
            "project": str(project) if project else None,
            "tags": tuple(str(tag) for tag in tags),
            "run_id": str(asked["id"]) if asked["id"] else None,
            "resume": by_name or (asked["resume"] in _BY_ID and bool(asked["id"])),
            **telemetry,
        }
    )
    goes_on_by_name = options.enabled and by_name and not options.run_id
    if goes_on_by_name and _has_finished(Path(options.log_dir), str(name)):
        options = options.changed(resume=False)
    if options.enabled and asked["resume"] == "never" and _is_taken(Path(options.log_dir), options.run_id):
        say_once("wandb.init(resume='never')", f"found the id {options.run_id!r} taken: the run gets another")
        options = options.changed(run_id=None)
    about = About(
        name=str(name),
        project=str(project) if project else None,
        entity=asked["entity"],
        group=asked["group"],
        job_type=asked["job_type"],
        notes=asked["notes"],
        tags=options.tags,
    )
    return about, options


def last_step_of(log: TelemetryLogger) -> int | None:
    """Return the last step of the run that `log` goes on with; -1 for one that had none, None for a new run."""
    folder = log.run_folder
    if folder is None:
        return None
    with log.guard.catch("looking for the last step"):
        manifest = read_manifest(folder)
        if len(manifest.sessions) < 2:
            return None
        known = manifest.heartbeat.global_step if manifest.heartbeat is not None else None
        return max(_last_step_in(folder / METRICS_JSONL), -1 if known is None else known)
    return None


def _last_step_in(record_file: Path) -> int:
    descriptor = open_regular(record_file)
    try:
        size = os.fstat(descriptor).st_size
        within = min(size, _LOOKED_THROUGH_BYTES)
        os.lseek(descriptor, size - within, os.SEEK_SET)
        lines = os.read(descriptor, within).split(b"\n")
    finally:
        os.close(descriptor)
    for line in reversed(lines):
        try:
            step = decode(line).get("global_step")
        except RecordError:
            continue
        if isinstance(step, int):
            return step
    return -1


def _is_taken(log_dir: Path, run_id: str | None) -> bool:
    return any(manifest.run_id == run_id for manifest in _runs_in(log_dir))


def _has_finished(log_dir: Path, name: str) -> bool:
    """Say whether the newest run of that name came to its end; one that does not exist did not."""
    called = [manifest for manifest in _runs_in(log_dir) if manifest.display_name == name]
    newest = max(called, key=lambda manifest: manifest.created, default=None)
    return newest is not None and newest.latest is not None and newest.latest.status == "finished"


def _runs_in(log_dir: Path) -> Iterator[Manifest]:
    for folder in log_dir.iterdir() if log_dir.is_dir() else ():
        try:
            yield read_manifest(folder)
        except (OSError, ManifestError):
            continue
