"""The `telemetry` command: finds the subcommand and hands over to it."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol, cast

SUBCOMMANDS = {
    "attach": "have an ai-toolkit checkout record its trainings, by one file in its extensions",
    "completions": "what the model of a run answered last, or where it said something",
    "detach": "take that file out of the checkout again",
    "doctor": "what is wrong with a run, what usually causes it, and what to try",
    "errors": "what failed in a run and where it hung, with stacks, and how often",
    "message": "try the messages that a training's YAML asks for: send one, or show it",
    "repair": "finish what a killed run left behind, and rebuild its metrics.csv",
    "share": "one zip of a run that is safe to post, and what was taken out of it",
    "show": "where a run's folder is, and its last steps as pandas sees them",
    "status": "whether an ai-toolkit checkout records its trainings",
    "time": "where the time of a run went, and how much of it was training",
    "trace": "a run's spans as a Chrome trace, which Perfetto opens",
    "usage": "whether anonymous usage reports are sent, and every word that is in them",
}
"""Name and summary of each subcommand; `toolkit/cli/<name>.py` is imported only when it is called."""


class Subcommand(Protocol):
    """What a module under `toolkit/cli` offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the subcommand's own arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do the work; the number is the exit code."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that `argv` (the command line where it is None) asks for, and give back its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser, subcommand = _parser_for(arguments)
    args = parser.parse_args(arguments)

    if subcommand is None:
        parser.print_help()
        return 2

    try:
        return subcommand.run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `telemetry show | head`: the reader has seen enough, and the interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser_for(arguments: Sequence[str]) -> tuple[argparse.ArgumentParser, Subcommand | None]:
    parser = argparse.ArgumentParser(prog="telemetry", description="Look after run folders.")
    parser.add_argument("--version", action="version", version=f"telemetry {_installed_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    # Options of the command itself take no value, so the first plain word is the subcommand.
    asked_for = next((word for word in arguments if not word.startswith("-")), None)
    found: Subcommand | None = None
    for name, summary in SUBCOMMANDS.items():
        command_parser = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if name == asked_for:
            found = cast("Subcommand", importlib.import_module(f"toolkit.cli.{name}"))
            found.add_arguments(command_parser)
    return parser, found


def _installed_version() -> str:
    try:
        return version("ai-toolkit-telemetry")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
