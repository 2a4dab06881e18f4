"""The name, folder and options of a run that a W&B script begins, and which earlier run it resumes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.writing.log_directory import log_dir_of, runs_called
from toolkit.telemetry.runfolder.layout import safe_run_name

_BY_ID: Final = ("allow", "must")
_BY_NAME: Final = (True, "auto")
"""W&B then resumes the last run of the folder, unless that run is finished."""
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


def requested_settings(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run: from the call, else from its settings, else from W&B's environment variables."""
    requested: dict[str, Any] = {}
    for name, (setting, variable) in _SETTINGS.items():
        value = given[name] if given[name] is not None else settings.get(setting)
        requested[name] = value if value is not None or variable is None else os.environ.get(variable) or None
    return requested


def run_options(requested: Mapping[str, Any], telemetry: Mapping[str, Any]) -> tuple[TelemetryOptions, str]:
    """Return the logger's options, of which those in `telemetry` win, and the run's name.

    Raises:
        OptionsError: an option of `telemetry` is invalid.
    """
    switched_off = os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes")
    tags = requested["tags"] or ()
    tags = tags.split(",") if isinstance(tags, str) else tags
    project, by_name = requested["project"], requested["resume"] in _BY_NAME
    name = requested["name"] or project or "run"
    # Ranks find each other by the run's name, and their clocks may differ.
    if not requested["name"] and not requested["id"] and not by_name and find_rank().world_size == 1:
        name = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    options = TelemetryOptions.from_mapping(
        {
            "enabled": requested["mode"] != "disabled" and not switched_off,
            "log_dir": os.path.join(os.fspath(requested["dir"] or "."), "logs"),
            # W&B keeps every row.
            "log_every": 1,
            "project": str(project) if project else None,
            "tags": tuple(str(tag) for tag in tags),
            "run_id": str(requested["id"]) if requested["id"] else None,
            "resume": by_name or (requested["resume"] in _BY_ID and bool(requested["id"])),
            **telemetry,
        }
    )
    if options.enabled and by_name and not options.run_id and _has_finished(log_dir_of(options), str(name)):
        options = options.changed(resume=False)
    return options, str(name)


def _has_finished(log_dir: Path, name: str) -> bool:
    """Return whether the newest run of that name exists and is finished."""
    called = [manifest for _, manifest in runs_called(log_dir, safe_run_name(name), name)]
    newest = max(called, key=lambda manifest: manifest.created, default=None)
    return newest is not None and newest.latest is not None and newest.latest.status == "finished"
