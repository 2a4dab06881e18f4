"""The `telemetry` command: finds the subcommand and runs it."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Protocol, cast

from toolkit.telemetry.cli.chosen_run import refuse
from toolkit.telemetry.cli.terminal import (
    ReaderGoneError,
    add_no_color_argument,
    describe_json,
    only_text,
    turn_colours_off,
    write_any_text,
)
from toolkit.telemetry.core import plugins

SUBCOMMANDS: Final = {
    "ask": "ask a live run to save, sample, stop or change a setting, and print its answer",
    "compare": "show runs side by side: settings that differ, last and best values",
    "copy": "copy run folders to a bucket or a shared folder, and back, or bring a run back from ClickHouse",
    "dashboard": "show runs in a browser, from folders or from ClickHouse",
    "doctor": "show what is wrong with a run, the likely causes and what to try",
    "export": "write a run as a table, for other tools, as a trace or as a zip to post; another tool's as a run folder",
    "forecast": "say where a loss will end, when the run ends, what runs out before; which runs of a sweep can stop",
    "gc": "list what can be deleted, such as trash, old journals and caches, and delete it with --yes",
    "logs": "show what a run printed, search it, and follow it",
    "ls": "list runs, ours and those of other tools: status, last step, loss and age",
    "mcp": "answer an agent's questions about runs over the Model Context Protocol (MCP)",
    "metrics": "show the runs of this machine to Prometheus, or write them for node_exporter",
    "repair": "recover the records that a killed run left and rebuild its metrics.csv",
    "report": "write runs as one HTML file with their data inside, or as Markdown to paste",
    "rm": "move runs to the trash, with --yes",
    "setup": "shell completion, an ai-toolkit checkout, a test of messages, usage reports, plug-ins",
    "ship": "copy the records of run folders into ClickHouse, as they are written",
    "show": "show a run, ours or another tool's: its series, its errors, what its model answered",
    "sql": "ask one SELECT over runs: their settings, steps, evaluations, spans, findings and requests",
    "status": "show whether a run is running, its step, loss, speed and time left",
    "tail": "print the last records of a run, ours or another tool's, and new ones as they come",
    "time": "show where the time of a run went and how much of it was training",
    "top": "show runs, curves, GPUs and findings live in the terminal",
    "verdict": "say whether a run is really better than the best one: keep, discard or run again",
    "why": "say why two runs differ, or whether a resumed run continued the same training, and if not, why",
}
"""Name and summary of each subcommand.

To add one: write `commands/<group>/<name>.py`, add a line here and its name to the group, run `make docs`.
Those of plug-ins are looked for only where a name is not in this list, and for the help.
"""

GROUPS: Final = {
    "look": ("Look at runs", "ls top status show sql tail logs doctor forecast time dashboard"),
    "decide": ("Decide", "compare why verdict report ask"),
    "keep": ("Keep and delete", "repair rm gc export"),
    "send": ("Send", "metrics ship copy"),
    "setup": ("Set up", "mcp setup"),
}
"""The folders in `commands`: what one does, and the subcommands for it, in the order of the help."""

ALIASES: Final = {"list": "ls"}
RENAMED: Final = {
    **{
        name: f"telemetry setup {name}"
        for name in ("ai-toolkit", "completion", "message", "plugins", "usage")
    },
    "archive": "telemetry copy --to",
    "attach": "telemetry setup ai-toolkit attach",
    "compare --to": "telemetry report --markdown",
    "completions": "telemetry show --completions",
    "detach": "telemetry setup ai-toolkit detach",
    "doctor --html": "telemetry report --html",
    "errors": "telemetry show --errors",
    "formats": "telemetry ls --formats",
    "gc --dry-run": "telemetry gc",
    "import": "telemetry export --to run-folder",
    "pull": "telemetry copy --from",
    "resume": "telemetry why",
    "share": "telemetry export --to zip",
    "ship --archive": "telemetry copy --to",
    "stopping": "telemetry forecast --stopping",
    "trace": "telemetry export --to trace",
    "train": "python run.py",
}
"""Earlier names of subcommands and options, and what to type today."""


class Subcommand(Protocol):
    """What a module in `toolkit/telemetry/cli/commands` provides; `JSON_FORM`, if any, says what `--json` prints."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments of the subcommand."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the subcommand and return its exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand named in `argv` (default: the command line) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_ours = _requested(arguments) != "dashboard"
    if argv is None:
        write_any_text()
    with only_text() if is_ours else nullcontext():
        return _answer(arguments)


def _answer(arguments: Sequence[str]) -> int:
    """Run the subcommand; return its exit code, or that of a failure that is no one's mistake."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    except plugins.PluginError as error:
        return refuse(str(error))
    except (OSError, ReaderGoneError) as error:
        if isinstance(error, (BrokenPipeError, ReaderGoneError)):
            # `telemetry show | head` closed the pipe; the interpreter must not flush into it again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _run(arguments: Sequence[str]) -> int:
    parser, command_parser, subcommand = _parser_for(arguments)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        earlier = f"{_requested(arguments)} {unknown[0].partition('=')[0]}"
        if earlier in RENAMED:
            parser.error(f"`telemetry {earlier}` is `{RENAMED[earlier]}` now")
        options = list((command_parser or parser)._option_string_actions)  # noqa: SLF001 - there is no public list
        near = difflib.get_close_matches(unknown[0].partition("=")[0], options, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        (command_parser or parser).error(f"unknown: {' '.join(unknown)}{hint}")
    if args.no_color:
        turn_colours_off()
    if subcommand is None:
        parser.print_help()
        return 2
    code = subcommand.run(args)
    print(end="", flush=True)
    return code


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of one subcommand, which is imported for it."""
    parser = argparse.ArgumentParser(prog=f"telemetry {name}")
    subcommand_of(name).add_arguments(parser)
    return parser


def parser_of_all() -> argparse.ArgumentParser:
    """Return the parser of the command with all its subcommands, each of which is imported for it."""
    parser = argparse.ArgumentParser(prog="telemetry")
    parser.add_argument("--version", action="version", version="")
    commands = parser.add_subparsers()
    for name, summary in SUBCOMMANDS.items():
        subcommand_of(name).add_arguments(commands.add_parser(name, help=summary))
    for each in (parser, *commands.choices.values()):
        add_no_color_argument(each)
    return parser


def grouped() -> dict[str, list[str]]:
    """Return the names of the subcommands by what one does with them."""
    return {title: names.split() for title, names in GROUPS.values()}


def _list_of_commands() -> str:
    lines = ["Inspect, repair and share run folders."]
    for title, names in grouped().items():
        lines.append(f"\n{title}:")
        for name in names:
            lines += textwrap.wrap(
                SUBCOMMANDS[name],
                width=max(50, shutil.get_terminal_size().columns - 2),
                initial_indent=f"  {name:<13}",
                subsequent_indent=" " * 15,
            )
    plugin_lines = [
        f"  {plugin.name:<13}{summary_of(plugin.value)} ({plugin.package})" for plugin in load_plugins()
    ]
    return "\n".join([*lines, "\nPlug-ins:", *plugin_lines] if plugin_lines else lines)


def load_plugins() -> list[plugins.Plugin]:
    """Return the subcommands of plug-ins: each is a module or an object as `Subcommand` describes it."""

    def problem_of(value: object) -> str:
        lacking = [name for name in ("add_arguments", "run") if not callable(getattr(value, name, None))]
        return f"it has no {' and no '.join(lacking)}" if lacking else ""

    return plugins.load("commands", problem_of, taken=SUBCOMMANDS)


def summary_of(value: object) -> str:
    """Return the first line of a subcommand's docstring, without the command's name."""
    first = (getattr(value, "__doc__", None) or "").strip().partition("\n")[0]
    return first.rpartition("`: ")[2].rstrip(".")


def _parser_for(
    arguments: Sequence[str],
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser | None, Subcommand | None]:
    requested = _requested(arguments)
    parser = argparse.ArgumentParser(
        prog="telemetry",
        usage="%(prog)s [--version] [--no-color] COMMAND ...",
        description=_list_of_commands() if requested is None else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="`telemetry COMMAND --help` describes one; `list` is another name of `ls`.",
    )
    parser.add_argument("--version", action="version", version=f"telemetry {_installed_version()}")
    add_no_color_argument(parser, default=False)
    commands = parser.add_subparsers(metavar="COMMAND", help=argparse.SUPPRESS, prog="telemetry")

    if requested is None:
        return parser, None, None
    name = ALIASES.get(requested, requested)
    other = [] if name in SUBCOMMANDS else load_plugins()
    plugin = next((plugin for plugin in other if plugin.name == name), None)
    if name not in SUBCOMMANDS and plugin is None:
        if requested in RENAMED:
            parser.error(f"`telemetry {requested}` is `{RENAMED[requested]}` now")
        near = difflib.get_close_matches(requested, [*SUBCOMMANDS, *ALIASES], n=2)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        parser.error(f"there is no command {requested!r}{hint} (`telemetry --help` lists all)")
    summary = SUBCOMMANDS[name] if plugin is None else summary_of(plugin.value)
    aliases = [alias for alias, of in ALIASES.items() if of == name]
    command_parser = commands.add_parser(
        name, aliases=aliases, description=f"{summary[:1].upper()}{summary[1:]}."
    )
    found = subcommand_of(name) if plugin is None else _PluginCommand(plugin)
    found.add_arguments(command_parser)
    if "-" in command_parser.prefix_chars:
        add_no_color_argument(command_parser)
    describe_json(command_parser, getattr(found, "JSON_FORM", None))
    return parser, command_parser, found


class _PluginCommand:
    """A subcommand of a plug-in; its failures name it."""

    def __init__(self, plugin: plugins.Plugin) -> None:
        self._plugin = plugin

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        self._plugin.call(self._plugin.value.add_arguments, parser)

    def run(self, args: argparse.Namespace) -> int:
        try:
            code = self._plugin.call(self._plugin.value.run, args)
        except plugins.PluginError as error:
            if isinstance(error.__cause__, SystemExit):
                raise error.__cause__ from None
            raise
        return code if isinstance(code, int) else 0


def _requested(arguments: Sequence[str]) -> str | None:
    # Options of `telemetry` itself take no value, so the first plain word is the subcommand. Only that one is imported.
    return next((word for word in arguments if not word.startswith("-")), None)


def subcommand_of(name: str) -> Subcommand:
    """Return the module of a subcommand."""
    group = next(group for group, (_, names) in GROUPS.items() if name in names.split())
    return cast(
        "Subcommand",
        importlib.import_module(f"toolkit.telemetry.cli.commands.{group}.{name.replace('-', '_')}"),
    )


def _installed_version() -> str:
    try:
        return version("ai-toolkit-telemetry")
    except PackageNotFoundError:
        return "(not installed)"
