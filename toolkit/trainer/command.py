"""The command of run.py: trains each configuration file in turn."""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.core.checks import OptionsError, shown, wrong
from toolkit.telemetry.machine.environment import this_process_began
from toolkit.trainer.ai_toolkit_checkout import (
    AI_TOOLKIT_TYPES,
    AttachError,
    start_in_checkout,
    what_is_missing,
)
from toolkit.trainer.config import PROCESS_KEY, PROCESS_TYPE, JobOptions, parse_job, process_type
from toolkit.trainer.config_file import read_config_file

if TYPE_CHECKING:
    from toolkit.trainer.job import Outcome

_PROGRAM = "run.py"
_FINISHED = 0
_WRONG_CONFIG = 2
_EXIT_CODES = {"finished": 0, "stopped": 0, "interrupted": 130, "signal": 143}
_TRAINING_MODULES = frozenset(("torch", "numpy", "safetensors", "tqdm", "PIL"))


class _RefusedError(Exception):
    """A configuration cannot be trained here; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the configurations on the command line; return 0, or the exit code of the first that failed."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, description="Train a LoRA from a configuration file.")
    add_arguments(parser)
    chosen = parser.parse_args(arguments)
    # The first job's time starts with the process, unless another program calls this function.
    return train(chosen, began=this_process_began() if arguments is None else None)


def add_arguments(parser: argparse.ArgumentParser, *, default_config: bool = False) -> None:
    """Declare the configurations and what replaces parts of them."""
    parser.add_argument(
        "config",
        metavar="CONFIG",
        nargs="*" if default_config else "+",
        type=Path,
        help="configuration files, YAML or JSON, trained one after the other",
    )
    parser.add_argument("-n", "--name", help="the value of [name] in the configuration")
    parser.add_argument("--steps", type=int, metavar="N", help="train N steps instead of train.steps")
    parser.add_argument(
        "--log-dir", metavar="DIR", help="write run folders to DIR instead of telemetry.log_dir"
    )
    parser.add_argument(
        "--ai-toolkit",
        type=Path,
        metavar="CHECKOUT",
        help="train with ai-toolkit in this checkout, recorded by telemetry",
    )


def train(chosen: argparse.Namespace, *, prog: str = _PROGRAM, began: float | None = None) -> int:
    """Train what was chosen on a command line; `began` is when the time of the first job starts."""
    if chosen.ai_toolkit is not None:
        if chosen.steps is not None or chosen.log_dir is not None:
            print(
                f"{prog}: error: --steps and --log-dir are for the embedded trainer; set them in the configuration",
                file=sys.stderr,
            )
            raise SystemExit(_WRONG_CONFIG)
        return _train_with_ai_toolkit(chosen.ai_toolkit, chosen.config, chosen.name, prog)
    for path in chosen.config:
        try:
            code = _train_file(path, chosen.name, chosen.steps, chosen.log_dir, began)
            began = None
        except (_RefusedError, OptionsError) as error:
            print(f"{prog}: {path}: {error}", file=sys.stderr)
            return _WRONG_CONFIG
        except KeyboardInterrupt:
            print(f"{prog}: interrupted", file=sys.stderr)
            return _EXIT_CODES["interrupted"]
        if code != _FINISHED:
            return code
    return _FINISHED


def _train_with_ai_toolkit(checkout: Path, configs: Sequence[Path], name: str | None, prog: str) -> int:
    for path in configs:
        try:
            kind = process_type(read_config_file(path, name=name))
        except OptionsError as error:
            print(f"{prog}: {path}: {error}", file=sys.stderr)
            return _WRONG_CONFIG
        if kind == PROCESS_TYPE:
            print(
                f"{prog}: {path}: type {kind} belongs to the embedded trainer, not to ai-toolkit",
                file=sys.stderr,
            )
            return _WRONG_CONFIG
    try:
        return start_in_checkout(checkout, configs, name=name)
    except (AttachError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
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
        raise wrong(f"{PROCESS_KEY}.type", kind, f"one of {known}")
    outcome = _train(parse_job(_with_overrides(mapping, steps=steps, log_dir=log_dir)), began)
    print(f"[run] {outcome.reason} at step {outcome.step}")
    if outcome.checkpoint is not None:
        print(f"[run] checkpoint: {outcome.checkpoint}")
    if outcome.run_folder is not None:
        print(f"[run] run folder: {_from_here(outcome.run_folder)}")
    return _EXIT_CODES[outcome.reason]


def _with_overrides(mapping: Mapping[str, Any], *, steps: int | None, log_dir: str | None) -> dict[str, Any]:
    """Return a copy of `mapping` with the number of steps and the telemetry folder replaced if given."""
    changed = copy.deepcopy(dict(mapping))
    if steps is not None:
        _section(_process(changed), "train", "--steps")["steps"] = steps
    if log_dir is not None:
        _telemetry_parent(changed)["telemetry"]["log_dir"] = log_dir
    return changed


def _process(mapping: dict[str, Any]) -> dict[str, Any]:
    process: dict[str, Any] = mapping["config"]["process"][0]
    return process


def _section(parent: dict[str, Any], name: str, flag: str) -> dict[str, Any]:
    section = parent.get(name)
    if not isinstance(section, dict):
        raise OptionsError(f"{flag} needs a {name} section in the configuration, got {shown(section)}")
    return section


def _telemetry_parent(mapping: dict[str, Any]) -> dict[str, Any]:
    """Return the first of the three places that hold a `telemetry:` block, in the order the logger looks."""
    for place in (_process(mapping), mapping["config"], mapping):
        if isinstance(place.get("telemetry"), dict):
            return place
    raise OptionsError("--log-dir needs a telemetry block in the configuration")


def _from_here(path: Path) -> Path:
    """Return `path` relative to the current folder if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _train(job: JobOptions, began: float | None) -> Outcome:
    # Imported here, so that an invalid configuration is reported at once and without torch.
    try:
        from toolkit.trainer.job import train
    except ModuleNotFoundError as error:
        if error.name not in _TRAINING_MODULES:
            raise
        raise _RefusedError(
            f'training needs {error.name}, which is not installed.\npip install "ai-toolkit-telemetry[training]"'
        ) from error
    return train(job, began=began)
