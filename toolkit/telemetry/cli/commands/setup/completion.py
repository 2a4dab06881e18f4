"""`telemetry completion`: print a script that completes commands, options and paths in a shell."""

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
        'It needs `pip install shtab`. For bash, add `eval "$(telemetry completion bash)"` to ~/.bashrc; for zsh, the '
        "same with zsh to ~/.zshrc, after compinit; for fish, run `telemetry completion fish > "
        "~/.config/fish/completions/telemetry.fish`."
    )


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    try:
        import shtab
    except ModuleNotFoundError:
        return refuse(f"telemetry completion needs shtab: {install_command('shtab')}")
    # Here, because the list of commands names this one.
    from toolkit.telemetry.cli.main import parser_of_all

    parser = parser_of_all()
    # argparse has no public list of the arguments.
    for command in parser._subparsers._group_actions[0].choices.values():  # type: ignore[union-attr] # noqa: SLF001
        for action in command._actions:  # noqa: SLF001
            if action.nargs != 0 and action.choices is None:
                action.complete = shtab.FILE
    print(shtab.complete(parser, args.shell))
    return 0
