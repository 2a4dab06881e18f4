"""`telemetry train`: train from a YAML, as run.py does."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import toolkit
from toolkit.cli.chosen_run import refuse
from toolkit.trainer.command import add_arguments as add_training_arguments
from toolkit.trainer.command import train

EXAMPLE: Final = Path("config", "examples", "train_lora_tiny_cpu_with_telemetry.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the configurations and what replaces parts of them."""
    add_training_arguments(parser, default_config=True)
    parser.epilog = (
        "It is the same program as `run.py`. Without CONFIG it trains the example, a tiny LoRA, in a minute on a "
        "CPU. Exit code: that of the training; 1 if it failed, 2 if the configuration is invalid or a package is "
        "missing."
    )


def run(args: argparse.Namespace) -> int:
    """Train; return the exit code of the training."""
    if not args.config:
        example = _example()
        if example is None:
            return refuse(f"the example {EXAMPLE} is not installed here; name a configuration file")
        args.config = [example]
    return train(args, prog="telemetry train")


def _example() -> Path | None:
    package = Path(next(iter(toolkit.__path__)))
    places = (Path.cwd(), package.parent, package / "trainer")
    return next((place / EXAMPLE for place in places if (place / EXAMPLE).is_file()), None)
