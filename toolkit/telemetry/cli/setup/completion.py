"""`telemetry setup completion`: print a script that completes commands, options and paths in a shell."""

from __future__ import annotations

import argparse
from typing import Final

from toolkit.telemetry.cli.chosen_run import refuse
from toolkit.telemetry.core.install import install_command

SHELLS: Final = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shell."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    parser.epilog = (
        'It needs `pip install shtab`. For bash, add `eval "$(telemetry setup completion bash)"` to ~/.bashrc; for '
        "zsh, the same with zsh to ~/.zshrc, after compinit; for fish, run `telemetry setup completion fish > "
        "~/.config/fish/completions/telemetry.fish`."
    )


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    try:
        import shtab
    except ModuleNotFoundError:
        return refuse(f"telemetry setup completion needs shtab: {install_command('shtab')}")
    # Here, because the list of commands names this one.
    from toolkit.telemetry.cli.main import parser_of_all

    parser = parser_of_all()
    _complete_paths(parser, shtab.FILE)
    print(shtab.complete(parser, args.shell))
    return 0


def _complete_paths(parser: argparse.ArgumentParser, complete: object) -> None:
    # argparse has no public list of the arguments.
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                _complete_paths(command, complete)
        elif action.nargs != 0 and action.choices is None:
            action.complete = complete  # type: ignore[attr-defined]
