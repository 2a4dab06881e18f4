"""Numbers and metrics on the command line: what is not one is refused in plain words, with what is allowed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterable
from typing import Final

from toolkit.telemetry.cli.chosen_run import CommandError
from toolkit.telemetry.runfolder.metrics import Direction, guess_primary_metric, metric_direction

_MOST: Final = 1_000_000_000
_AGE: Final = re.compile(r"(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?)(?P<unit>s|min|h|d|w)")
_UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def whole(low: int = 1, high: int = _MOST) -> Callable[[str], int]:
    """Return what reads a whole number between two limits."""

    def read(text: str) -> int:
        number = text.strip()
        if number.isascii() and number.isdigit() and len(number) < 20 and low <= int(number) <= high:
            return int(number)
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a whole number from {low:,} to {high:,}")

    return read


def seconds(text: str) -> float:
    """Return a number of seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < _MOST:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a number of seconds above 0")
    return number


def age(text: str) -> float:
    """Return an age in seconds, such as 12h or 30d."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a number with a unit, such as 12h, 30d or 4w")
    return float(match["number"]) * _UNITS[match["unit"]]


def add_metric_arguments(
    parser: argparse.ArgumentParser, what: str = "what to compare (default: a validation loss, …)"
) -> None:
    """Declare what runs are compared by."""
    parser.add_argument("--metric", metavar="NAME", help=what)
    add_goal_argument(parser)


def add_goal_argument(parser: argparse.ArgumentParser) -> None:
    """Declare whether less or more is better."""
    parser.add_argument("--goal", choices=("min", "max"), help="what is better (default: by the name)")


def metric_and_goal(args: argparse.Namespace, names: Iterable[Collection[str]]) -> tuple[str, Direction]:
    """Return what the runs with metrics of these names are compared by. Raises CommandError if that is not known."""
    metric = args.metric or guess_primary_metric(names)
    if metric is None:
        raise CommandError("the runs share no metric whose name says what is better; name one with --metric")
    goal = args.goal or metric_direction(metric)
    if goal is None:
        raise CommandError(
            f"whether a lower or a higher {metric} is better is not known: --goal min or --goal max"
        )
    return metric, goal


def refuse_misplaced(args: argparse.Namespace, options: Iterable[str], belong_to: str) -> None:
    """Raise CommandError if one of these options was given, which mean nothing here."""
    for name in options:
        if getattr(args, name):
            raise CommandError(f"--{name.replace('_', '-')} is only for {belong_to}")
