"""`telemetry train`: train from a YAML, as run.py does."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import refuse
from toolkit.telemetry.trainer.command import add_arguments as add_training_arguments
from toolkit.telemetry.trainer.command import train

EXAMPLE: Final = "train_lora_tiny_cpu_with_telemetry.yaml"

_TELEMETRY: Final = Path(__file__).resolve().parents[3]
_PLACES: Final = (_TELEMETRY / "trainer" / "examples", _TELEMETRY.parents[1] / "config" / "examples")
"""Where the examples are: in a wheel, and in a checkout."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the configurations and what replaces parts of them."""
    add_training_arguments(parser, default_config=True)
    parser.add_argument(
        "--copy-examples",
        type=Path,
        metavar="DIR",
        help="copy the example configurations to DIR, and do nothing else",
    )
    parser.epilog = (
        "It is the same program as `run.py`. Without CONFIG it trains the example, a tiny LoRA, in a minute on a "
        "CPU. Exit code: that of the training; 1 if it failed, 2 if the configuration is invalid or a package is "
        "missing."
    )


def run(args: argparse.Namespace) -> int:
    """Train; return the exit code of the training."""
    examples = _examples()
    if args.copy_examples is not None:
        return _copy(examples, args.copy_examples)
    if not args.config:
        example = next((path for path in examples if path.name == EXAMPLE), None)
        if example is None:
            return refuse(f"the example {EXAMPLE} is not installed here; name a configuration file")
        args.config = [example]
    return train(args, prog="telemetry train")


def _examples() -> list[Path]:
    return next((found for place in _PLACES if (found := sorted(place.glob("*.yaml")))), [])


def _copy(examples: list[Path], folder: Path) -> int:
    """Copy the examples; one that is already there is left alone, and the exit code is 2."""
    if not examples:
        return refuse("the examples are not installed here")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for example in examples:
            target = folder / example.name
            with target.open("xb") as file, example.open("rb") as source:
                shutil.copyfileobj(source, file)
            print(target)
    except OSError as error:
        return refuse(f"{error.filename}: {error.strerror}")
    return 0
