"""Records every trainer that ai-toolkit runs, if the job's configuration enables telemetry."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from toolkit.telemetry.core.guard import PREFIX, Guard, print_line
from toolkit.telemetry.integrations.ai_toolkit.watched_process import WatchedProcess
from toolkit.telemetry.logger.machine.environment import this_process_began
from toolkit.telemetry.logger.options import OptionsError, TelemetryOptions, options_from_config

_MARK: Final = "_telemetry_is_hooked"


def hook_trainers() -> None:
    """Record each trainer's run, if its job has a `telemetry:` block."""
    hook_class(importlib.import_module("jobs.process").BaseSDTrainProcess)


def hook_class(base: Any) -> None:
    """Record each `run` of `base`, ai-toolkit's base class of trainers, and of its subclasses."""
    if _MARK in vars(base):
        return
    train: Callable[..., Any] = base.run
    is_first = True

    @functools.wraps(train)
    def run(process: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_first
        watched, was_first, is_first = None, is_first, False
        with Guard().catch("attaching to ai-toolkit"):
            # Time before an earlier job, or an earlier process of the job, is not part of this one.
            began = this_process_began() if was_first and process.process_id == 0 else None
            watched = _watched(process, began)
        if watched is None:
            return train(process, *args, **kwargs)
        return watched.run(functools.partial(train, process, *args, **kwargs))

    base.run = run
    setattr(base, _MARK, True)


def _watched(process: Any, began: float | None) -> WatchedProcess | None:
    try:
        options = options_of_process(process)
    except OptionsError as error:
        # Telemetry never stops a job; ai-toolkit itself ignores the block.
        print_line(f"{PREFIX} this job is not recorded: {error}")
        return None
    return WatchedProcess(process, options, began=began) if options.enabled else None


def options_of_process(process: Any) -> TelemetryOptions:
    """Return the options for one process of a job: its own `telemetry:` block, else the job's, else the file's.

    Raises:
        OptionsError: the block is invalid.
    """
    whole = _mapping(process.job.raw_config)
    # Other processes of the job have their own blocks.
    own = dict(_mapping(process.config))
    # ai-toolkit uses these itself; a second W&B run in one process would end the first.
    own.pop("log_dir", None)
    logging = _mapping(own.pop("logging", None))
    every = logging.get("log_every")
    if isinstance(every, int) and not isinstance(every, bool) and every >= 1:
        own["logging"] = {"log_every": every}
    config = {**whole, "config": {**_mapping(whole.get("config")), "process": [own]}}
    changes: dict[str, Any] = {"wandb": False} if logging.get("use_wandb") is True else {}
    return options_from_config(config, **changes)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
