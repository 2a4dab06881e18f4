"""The `telemetry` command: finds the subcommand and runs it."""

from __future__ import annotations

import argparse
import importlib
import keyword
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Protocol, cast

from toolkit.cli.terminal import turn_colours_off

SUBCOMMANDS: Final = {
    "ask": "ask a live run to save, sample, stop or change a setting, and print its answer",
    "attach": "record the trainings of an ai-toolkit checkout, by adding one file to its extensions",
    "compare": "show runs side by side: settings that differ, last and best values",
    "completion": "print a script that completes commands, options and paths in bash, zsh or fish",
    "completions": "show or search what the model of a run answered",
    "dashboard": "show runs in a browser, from folders or from ClickHouse",
    "detach": "stop recording an ai-toolkit checkout, by removing the file that attach added",
    "doctor": "show what is wrong with a run, the likely causes and what to try",
    "errors": "show what failed in a run and where it hung, with stacks and counts",
    "export": "write a run, ours or another tool's, in the format of another tool, or as a table",
    "formats": "list the logs of other tools that can be read here, and what a missing package would add",
    "gc": "list what can be deleted, such as trash, old journals and caches, and delete it with --yes",
    "import": "make run folders of other tools' logs, or add what is new to them",
    "ls": "list runs, ours and those of other tools: status, last step, loss and age",
    "message": "test the messages that a training's YAML asks for: send one, or print it",
    "pull": "bring a run folder back from ClickHouse, byte for byte",
    "repair": "recover what a killed run left behind and rebuild its metrics.csv",
    "report": "write runs as one HTML file with their data inside, or as Markdown to paste",
    "share": "write a redacted zip of a run that is safe to post, and list what was replaced",
    "ship": "copy the records of run folders into ClickHouse, as they are written",
    "show": "show a run, ours or another tool's: its series and its last steps",
    "status": "show whether an ai-toolkit checkout records its trainings",
    "tail": "print the last records of a run, ours or another tool's, and new ones as they come",
    "time": "show where the time of a run went and how much of it was training",
    "trace": "export the spans of a run as a Chrome trace, for Perfetto",
    "train": "train the example, or from any YAML, as run.py does",
    "usage": "show whether anonymous usage reports are sent, and everything they contain",
}
"""Name and summary of each subcommand.

To add one: write `toolkit/cli/commands/<name>.py`, add a line here, run `make docs`.
"""


_NO_COLOUR_HELP: Final = "print no colours, as with the variable NO_COLOR"


class Subcommand(Protocol):
    """What a module in `toolkit/cli/commands` provides; one with `--json` describes it in `JSON_FORM`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments of the subcommand."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the subcommand and return its exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand named in `argv` (default: the command line) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser, subcommand = _parser_for(arguments)
    args = parser.parse_args(arguments)
    if args.no_color:
        turn_colours_off()

    if subcommand is None:
        parser.print_help()
        return 2

    try:
        return subcommand.run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `telemetry show | head` closed the pipe; the interpreter must not flush into it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of one subcommand, which is imported for it."""
    parser = argparse.ArgumentParser(prog=f"telemetry {name}")
    subcommand_of(name).add_arguments(parser)
    return parser


def _parser_for(arguments: Sequence[str]) -> tuple[argparse.ArgumentParser, Subcommand | None]:
    parser = argparse.ArgumentParser(prog="telemetry", description="Inspect, repair and share run folders.")
    parser.add_argument("--version", action="version", version=f"telemetry {_installed_version()}")
    parser.add_argument("--no-color", action="store_true", help=_NO_COLOUR_HELP)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    # Options of `telemetry` itself take no value, so the first plain word is the subcommand. Only that one is imported.
    requested = next((word for word in arguments if not word.startswith("-")), None)
    found: Subcommand | None = None
    for name, summary in SUBCOMMANDS.items():
        command_parser = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if name == requested:
            found = subcommand_of(name)
            found.add_arguments(command_parser)
            if "-" in command_parser.prefix_chars:
                # SUPPRESS, or the default would hide a --no-color before the name of the subcommand.
                command_parser.add_argument(
                    "--no-color", action="store_true", default=argparse.SUPPRESS, help=_NO_COLOUR_HELP
                )
    return parser, found


def subcommand_of(name: str) -> Subcommand:
    """Return the module of a subcommand."""
    # A keyword is not a name for a module: `import` is in import_.py.
    module = f"{name}_" if keyword.iskeyword(name) else name
    return cast("Subcommand", importlib.import_module(f"toolkit.cli.commands.{module}"))


def _installed_version() -> str:
    try:
        return version("ai-toolkit-telemetry")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    from ai_toolkit_telemetry import telemetry

    sys.exit(telemetry())
