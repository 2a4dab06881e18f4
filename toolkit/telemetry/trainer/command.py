"""`python run.py`: trains the example, or what other configurations say."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.importers.training_yaml import read_training_yaml
from toolkit.telemetry.logger.machine.environment import this_process_began
from toolkit.telemetry.trainer.options import parse_job

_CHECKOUT: Final = Path(__file__).resolve().parents[3]
EXAMPLE: Final = _CHECKOUT / "config" / "examples" / "train_lora_tiny_cpu_with_telemetry.yaml"
_WRONG_CONFIG: Final = 2
_EXIT_CODES: Final = {"finished": 0, "stopped": 0, "interrupted": 130, "signal": 143}


def main(arguments: list[str]) -> int:
    """Train; return 0, or the exit code of the first training that failed."""
    # The time of the first run counts from the start of the process.
    began, args = this_process_began(), _parser().parse_args(arguments)
    for path in args.config or [EXAMPLE]:
        try:
            code = _train(path, args, began)
        except OptionsError as error:
            print(f"run.py: {path}: {error}", file=sys.stderr)
            return _WRONG_CONFIG
        except KeyboardInterrupt:
            return _EXIT_CODES["interrupted"]
        if code != 0:
            return code
        began = time.time()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run.py",
        description="Train from a YAML.",
        epilog="Without CONFIG it trains the example, a tiny LoRA, in a minute on a CPU. Exit code: that of the "
        "training; 1 if it failed, 2 if the configuration is invalid or a package is missing.",
    )
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
    return parser


def _train(path: Path, args: argparse.Namespace, began: float) -> int:
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
