"""The command behind run.py: train each configuration file in turn, and answer with an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.core.fields import ConfigError
from toolkit.telemetry import OptionsError
from toolkit.telemetry.machine.environment import this_process_began
from toolkit.trainer.ai_toolkit_checkout import (
    AI_TOOLKIT_TYPES,
    AttachError,
    start_in_checkout,
    what_is_missing,
)
from toolkit.trainer.config import PROCESS_KEY, PROCESS_TYPE, JobOptions, parse_job, process_type
from toolkit.trainer.config_file import read_config_file
from toolkit.trainer.overrides import with_overrides

if TYPE_CHECKING:
    from toolkit.trainer.job import Outcome

_FINISHED = 0
_WRONG_CONFIG = 2
_EXIT_CODES = {"finished": 0, "stopped": 0, "interrupted": 130, "signal": 143}
_TRAINING_MODULES = frozenset(("torch", "numpy", "safetensors", "tqdm", "PIL"))


class _RefusedError(Exception):
    """A configuration cannot be trained here; the message says why, in a line or two."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what the command line names; return 0, or the exit code of the first that did not end well."""
    parser = argparse.ArgumentParser(prog="run.py", description="Train a LoRA as a configuration file says.")
    parser.add_argument(
        "config", nargs="+", type=Path, help="configuration files, YAML or JSON, trained in turn"
    )
    parser.add_argument("-n", "--name", help="what [name] stands for in the configuration")
    parser.add_argument("--steps", type=int, metavar="N", help="train N steps, whatever train.steps says")
    parser.add_argument(
        "--log-dir", metavar="DIR", help="write run folders under DIR, whatever telemetry.log_dir says"
    )
    parser.add_argument(
        "--ai-toolkit",
        type=Path,
        metavar="CHECKOUT",
        help="train with ai-toolkit in this checkout of it, recorded by telemetry",
    )
    chosen = parser.parse_args(arguments)
    if chosen.ai_toolkit is not None:
        if chosen.steps is not None or chosen.log_dir is not None:
            parser.error("--steps and --log-dir are for the embedded trainer; set them in the configuration")
        return _train_with_ai_toolkit(chosen.ai_toolkit, chosen.config, chosen.name)
    # The first job's time begins with the process, which was started for it; called by another program, it does not.
    began = this_process_began() if arguments is None else None
    for path in chosen.config:
        try:
            code = _train_file(path, chosen.name, chosen.steps, chosen.log_dir, began)
            began = None
        except (_RefusedError, ConfigError, OptionsError) as error:
            print(f"run.py: {path}: {error}", file=sys.stderr)
            return _WRONG_CONFIG
        except KeyboardInterrupt:
            print("run.py: interrupted", file=sys.stderr)
            return _EXIT_CODES["interrupted"]
        if code != _FINISHED:
            return code
    return _FINISHED


def _train_with_ai_toolkit(checkout: Path, configs: Sequence[Path], name: str | None) -> int:
    for path in configs:
        try:
            kind = process_type(read_config_file(path, name=name))
        except ConfigError as error:
            print(f"run.py: {path}: {error}", file=sys.stderr)
            return _WRONG_CONFIG
        if kind == PROCESS_TYPE:
            print(f"run.py: {path}: type {kind} is the embedded trainer's, not ai-toolkit's", file=sys.stderr)
            return _WRONG_CONFIG
    try:
        return start_in_checkout(checkout, configs, name=name)
    except (AttachError, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return _WRONG_CONFIG


def _train_file(
    path: Path, name: str | None, steps: int | None, log_dir: str | None, began: float | None
) -> int:
    mapping = read_config_file(path, name=name)
    kind = process_type(mapping)
    if kind in AI_TOOLKIT_TYPES:
        raise _RefusedError(what_is_missing(kind, path, Path.cwd()))
    if kind != PROCESS_TYPE:
        known = ", ".join((PROCESS_TYPE, *AI_TOOLKIT_TYPES))
        raise ConfigError(f"{PROCESS_KEY}.type must be one of {known}, got {kind!r}")
    outcome = _train(parse_job(with_overrides(mapping, steps=steps, log_dir=log_dir)), began)
    print(f"[run] {outcome.reason} at step {outcome.step}")
    if outcome.checkpoint is not None:
        print(f"[run] checkpoint: {outcome.checkpoint}")
    if outcome.run_folder is not None:
        print(f"[run] run folder: {_from_here(outcome.run_folder)}")
    return _EXIT_CODES[outcome.reason]


def _from_here(path: Path) -> Path:
    """Return `path` as one would type it: relative where it lies below the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _train(job: JobOptions, began: float | None) -> Outcome:
    # Imported here, so that a wrong configuration is reported at once, and without torch at all.
    try:
        from toolkit.trainer.job import train
    except ModuleNotFoundError as error:
        if error.name not in _TRAINING_MODULES:
            raise
        raise _RefusedError(
            f'training needs {error.name}, which is not installed.\npip install "ai-toolkit-telemetry[training]"'
        ) from error
    return train(job, began=began)
