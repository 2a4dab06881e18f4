"""The command of run.py: trains each configuration file in turn, or hands them to ai-toolkit in a checkout of it."""

from __future__ import annotations

import argparse
import copy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.telemetry.core.checks import OptionsError, shown, wrong
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.integrations.ai_toolkit.attach import AttachError, attach, is_checkout, status
from toolkit.telemetry.logger.machine.environment import this_process_began
from toolkit.telemetry.trainer.config import (
    PROCESS_KEY,
    PROCESS_TYPE,
    JobOptions,
    parse_job,
    process_type,
    read_config_file,
)

if TYPE_CHECKING:
    from toolkit.telemetry.trainer.loop import Outcome

_PROGRAM = "run.py"
_WRONG_CONFIG = 2
_EXIT_CODES = {"finished": 0, "stopped": 0, "interrupted": 130, "signal": 143}
_TRAINING_MODULES = frozenset(("torch", "numpy", "safetensors"))
_AI_TOOLKIT_TYPES = tuple(
    """
    sd_trainer diffusion_trainer ui_trainer textual_inversion_trainer concept_slider concept_replacer
    image_reference_slider_trainer ultimate_slider_trainer
    """.split()
)
"""Process types that ai-toolkit trains; the embedded trainer never pretends to."""


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
    with_ai_toolkit = chosen.ai_toolkit is not None
    if with_ai_toolkit and (chosen.steps is not None or chosen.log_dir is not None):
        print(
            f"{prog}: error: --steps and --log-dir are for the embedded trainer; set them in the configuration",
            file=sys.stderr,
        )
        raise SystemExit(_WRONG_CONFIG)
    for path in chosen.config:
        try:
            mapping = read_config_file(path, name=chosen.name)
            _check_trainer(path, process_type(mapping), with_ai_toolkit=with_ai_toolkit)
            if with_ai_toolkit:
                continue
            code = _train(parse_job(_with_overrides(mapping, chosen.steps, chosen.log_dir)), began)
            began = None
        except OptionsError as error:
            print(f"{prog}: {path}: {error}", file=sys.stderr)
            return _WRONG_CONFIG
        except KeyboardInterrupt:
            print(f"{prog}: interrupted", file=sys.stderr)
            return _EXIT_CODES["interrupted"]
        if code != 0:
            return code
    if not with_ai_toolkit:
        return 0
    try:
        return start_in_checkout(chosen.ai_toolkit, chosen.config, name=chosen.name)
    except (AttachError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return _WRONG_CONFIG


def _check_trainer(path: Path, kind: str, *, with_ai_toolkit: bool) -> None:
    """Refuse a type that the chosen trainer does not train, and say what it needs."""
    if with_ai_toolkit:
        if kind == PROCESS_TYPE:
            raise OptionsError(f"type {kind} belongs to the embedded trainer, not to ai-toolkit")
    elif kind in _AI_TOOLKIT_TYPES:
        folder = Path.cwd()
        if is_checkout(folder):
            raise OptionsError(
                f"type {kind} is trained by ai-toolkit, and {folder} is a checkout of it.\n"
                f"Start it there: python run.py {path} --ai-toolkit {folder}"
            )
        raise OptionsError(
            f"type {kind} is trained by ai-toolkit, and {folder} is not a checkout of it "
            "(no jobs/ and toolkit/job.py).\n"
            "Get one with `git clone https://github.com/ostris/ai-toolkit`, install it as its README says, "
            "and give its folder: --ai-toolkit FOLDER"
        )
    elif kind != PROCESS_TYPE:
        known = ", ".join((PROCESS_TYPE, *_AI_TOOLKIT_TYPES))
        raise wrong(f"{PROCESS_KEY}.type", kind, f"one of {known}")


def _with_overrides(mapping: Mapping[str, Any], steps: int | None, log_dir: str | None) -> dict[str, Any]:
    """Return a copy of `mapping` with the number of steps and the telemetry folder replaced if given."""
    changed: dict[str, Any] = copy.deepcopy(dict(mapping))
    process = changed["config"]["process"][0]
    if steps is not None:
        if not isinstance(process.get("train"), dict):
            raise OptionsError(
                f"--steps needs a train section in the configuration, got {shown(process.get('train'))}"
            )
        process["train"]["steps"] = steps
    if log_dir is not None:
        # The first of the three places that hold a `telemetry:` block, in the order the logger looks.
        places = (process, changed["config"], changed)
        block = next(
            (place["telemetry"] for place in places if isinstance(place.get("telemetry"), dict)), None
        )
        if block is None:
            raise OptionsError("--log-dir needs a telemetry block in the configuration")
        block["log_dir"] = log_dir
    return changed


def _train(job: JobOptions, began: float | None) -> int:
    # Imported here, so that an invalid configuration is reported at once and without torch.
    try:
        from toolkit.telemetry.trainer.loop import train
    except ModuleNotFoundError as error:
        if error.name not in _TRAINING_MODULES:
            raise
        raise OptionsError(
            f"training needs {error.name}, which is not installed.\n{install_extra('training')}"
        ) from error
    outcome: Outcome = train(job, began=began)
    print(f"[run] {outcome.reason} at step {outcome.step}")
    if outcome.checkpoint is not None:
        print(f"[run] checkpoint: {outcome.checkpoint}")
    if outcome.run_folder is not None:
        folder, here = outcome.run_folder, Path.cwd()
        print(f"[run] run folder: {folder.relative_to(here) if folder.is_relative_to(here) else folder}")
    return _EXIT_CODES[outcome.reason]


def start_in_checkout(checkout: Path, configs: Sequence[Path], *, name: str | None = None) -> int:
    """Train `configs` with ai-toolkit's own run.py, attached to first if it is not yet; return its exit code.

    It runs in the checkout's own environment where it has one, and its relative paths begin at the checkout.

    Raises:
        AttachError: `checkout` is not an ai-toolkit checkout, or cannot be attached to.
        OSError: it could not be attached to, or Python could not be started.
    """
    checkout = checkout.resolve()
    found = status(checkout)
    if not found.is_current:
        path = attach(checkout, all_jobs=found.all_jobs)
        print(
            f"[run] attached: {path}; `telemetry setup ai-toolkit detach {checkout}` removes it", flush=True
        )
    pythons = [
        checkout / venv / inside
        for venv in ("venv", ".venv")
        for inside in ("bin/python", "Scripts/python.exe")
    ]
    python = next((str(path) for path in pythons if path.is_file()), sys.executable)
    command = [python, "run.py", *(str(config.resolve()) for config in configs)]
    if name is not None:
        command += ["--name", name]
    print(f"[run] {' '.join(command)}, in {checkout}", flush=True)
    with subprocess.Popen(command, cwd=checkout) as job:
        before = signal.signal(signal.SIGTERM, lambda *_: job.terminate())
        try:
            while True:
                try:
                    code = job.wait()
                    break
                except KeyboardInterrupt:
                    # The terminal has sent it to the job as well, which ends in its own time.
                    continue
        finally:
            signal.signal(signal.SIGTERM, before)
    return code if code >= 0 else 128 - code
