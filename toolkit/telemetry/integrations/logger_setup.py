"""How every integration gets its logger, and finds the run that a checkpoint belongs to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.runfolder.safefile import open_regular, replace_file

LINEAGE_FILE: Final = "telemetry_run.json"
"""A file in a checkpoint's folder that names its run."""
_MAX_LINEAGE_BYTES: Final = 64 * 1024
CLOCK_STEP_S: Final = 0.05
"""File times come from a clock that the kernel advances a few hundred times a second."""

GivenLog = TelemetryLogger | TelemetryOptions | Mapping[str, Any] | None
"""What an integration is given: a logger, which its owner closes, or the options to create one."""


def options_of(given: TelemetryOptions | Mapping[str, Any] | None, **options: Any) -> TelemetryOptions:
    """Return the options of a `telemetry:` block and keywords; keywords win.

    Raises:
        OptionsError: a key or value is invalid; the message names it and what is allowed.
    """
    if isinstance(given, TelemetryOptions):
        return given.changed(**options) if options else given
    return TelemetryOptions.from_mapping(given or {}, **options)


def in_project(options: TelemetryOptions, project: str, *tags: str) -> TelemetryOptions:
    """Return the options of one run of a sweep: in its project, unless they name another, and with further tags."""
    return options.changed(
        project=options.project or project, tags=tuple(dict.fromkeys((*options.tags, *tags)))
    )


def share_of_last_step(data: Any, samples: int | None) -> float:
    """Return the size of an epoch's last step relative to the others, which have `samples`; 1 if unknown."""
    try:
        left = len(data) % samples if samples else 0
    except TypeError:
        # A stream has no length.
        left = 0
    return left / samples if samples and left else 1.0


def remember_run(checkpoint: Any, log: TelemetryLogger) -> None:
    """Write into a checkpoint's folder which run it belongs to. May raise: call it where failures are guarded."""
    folder = Path(checkpoint)
    if log.run_id is not None and folder.is_dir():
        data = json.dumps({"run_id": log.run_id, "run_name": log.run_name}).encode() + b"\n"
        replace_file(folder / LINEAGE_FILE, data)


def log_save_since(
    log: TelemetryLogger,
    step: int,
    path: Any,
    times: tuple[float, float],
    hook: str | None = None,
    *,
    is_best: bool = False,
) -> None:
    """Record a checkpoint that was saved between two times of the clock, of which the first may be that of a hook."""
    began, ended = times
    log.training.on_save_checkpoint_start(step, 1000.0 * began, path=path)
    log.training.on_save_checkpoint_success(step, path=path)
    log.training.on_save_checkpoint_end(1000.0 * ended)
    since = {} if hook is None else {"timed_since": hook}
    log.log_checkpoint(step, path, is_best=is_best, seconds=ended - began, **since)


def run_id_in(checkpoint: Any) -> str | None:
    """Return the id of the run that the checkpoint at `checkpoint` belongs to; None if unknown."""
    if not isinstance(checkpoint, (str, os.PathLike)):
        return None
    try:
        descriptor = open_regular(Path(checkpoint) / LINEAGE_FILE)
    except (OSError, ValueError):
        return None
    try:
        found = json.loads(os.read(descriptor, _MAX_LINEAGE_BYTES))
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    run_id = found.get("run_id") if isinstance(found, dict) else None
    return run_id if isinstance(run_id, str) and run_id else None
