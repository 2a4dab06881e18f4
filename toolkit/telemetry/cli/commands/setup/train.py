"""`telemetry train`: train the example from a YAML; run.py is the same command."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import refuse
from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.importers.training_yaml import read_training_yaml
from toolkit.telemetry.logger.machine.environment import this_process_began

_CHECKOUT: Final = Path(__file__).resolve().parents[5]
EXAMPLE: Final = _CHECKOUT / "config" / "examples" / "train_lora_tiny_cpu_with_telemetry.yaml"
_WRONG_CONFIG: Final = 2
_EXIT_CODES: Final = {"finished": 0, "stopped": 0, "interrupted": 130, "signal": 143}
_NOT_HERE: Final = (
    "the example trainer is only in a checkout of this repository, not in an installed package.\n"
    "In a checkout, run: python run.py config/examples/train_lora_tiny_cpu_with_telemetry.yaml\n"
    "ai-toolkit is recorded after `telemetry setup ai-toolkit attach`; your own trainer logs by itself, see the README."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the configurations and what replaces parts of them."""
    parser.add_argument(
        "config",
        metavar="CONFIG",
        nargs="*",
        type=Path,
        help="configuration files, YAML or JSON, trained one after the other",
    )
    parser.add_argument("-n", "--name", help="the name of the run instead of config.name")
    parser.add_argument("--steps", type=int, metavar="N", help="train N steps instead of train.steps")
    parser.add_argument(
        "--log-dir", metavar="DIR", help="write run folders to DIR instead of telemetry.log_dir"
    )
    parser.epilog = (
        "It is the same program as `run.py`. Without CONFIG it trains the example, a tiny LoRA, in a minute on a "
        "CPU; the example is in a checkout of the repository only, not in an installed package. Exit code: that of "
        "the training; 1 if it failed, 2 if the configuration is invalid or a package is missing."
    )


def run(args: argparse.Namespace) -> int:
    """Train; return 0, or the exit code of the first training that failed."""
    # The time of the first run counts from the start of the process.
    began = this_process_began()
    for path in args.config or [EXAMPLE]:
        try:
            code = _train(path, args, began)
        except OptionsError as error:
            print(f"telemetry train: {path}: {error}", file=sys.stderr)
            return _WRONG_CONFIG
        if code != 0:
            return code
        began = time.time()
    return 0


def _train(path: Path, args: argparse.Namespace, began: float) -> int:
    try:
        from toolkit.telemetry.trainer.options import parse_job
    except ModuleNotFoundError:
        return refuse(_NOT_HERE)
    config = read_training_yaml(path)
    parse_job(config)
    if args.name is not None:
        config["config"]["name"] = args.name
    if args.steps is not None:
        config["config"]["process"][0]["train"]["steps"] = args.steps
    job = parse_job(config)
    try:
        # After the configuration is known to be right, as torch takes seconds.
        from toolkit.telemetry.trainer.loop import train
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy", "safetensors"):
            raise
        missing = f"training needs {error.name}, which is not installed.\n{install_extra('training')}"
        raise OptionsError(missing) from error
    return _EXIT_CODES[train(job, config, began=began, log_dir=args.log_dir)]
