"""Where a run that a W&B script begins is logged, and which earlier one it goes on with."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolkit.runfolder.codec import RecordError, decode
from toolkit.runfolder.layout import METRICS_JSONL
from toolkit.runfolder.manifest import ManifestError, read_manifest
from toolkit.runfolder.safefile import open_regular
from toolkit.telemetry.compat.stand_ins import say_once
from toolkit.telemetry.compat.wandb_identity import About
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.options import TelemetryOptions

_LOOKED_THROUGH_BYTES: Final = 1024 * 1024
"""From the end of the records back: some record in there has a step."""
_GOES_ON: Final = (True, "allow", "must", "auto")
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
    project, goes_on = asked["project"], asked["resume"] in _GOES_ON
    name = asked["name"] or project or "run"
    if not asked["name"] and not asked["id"] and not goes_on:
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
            "resume": goes_on,
            **telemetry,
        }
    )
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
    with log.guard.watch("looking for the last step"):
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
    for folder in log_dir.iterdir() if log_dir.is_dir() else ():
        try:
            if read_manifest(folder).run_id == run_id:
                return True
        except (OSError, ManifestError):
            continue
    return False
