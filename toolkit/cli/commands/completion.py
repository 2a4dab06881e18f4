"""`telemetry completion`: print a script that completes commands, options and paths in a shell."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from typing import Final

SHELLS: Final = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shell."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    parser.epilog = (
        'For bash, add `eval "$(telemetry completion bash)"` to ~/.bashrc; for zsh, the same with zsh to ~/.zshrc, '
        "behind compinit; for fish, run `telemetry completion fish > ~/.config/fish/completions/telemetry.fish`."
    )


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    # Here, because the list of commands names this one.
    from toolkit.cli.main import SUBCOMMANDS, parser_of

    # argparse has no public list of the arguments.
    actions = {name: parser_of(name)._actions for name in SUBCOMMANDS}  # noqa: SLF001
    writers: dict[str, Callable[[dict[str, str], dict[str, list[argparse.Action]]], str]] = {
        "bash": _bash,
        "zsh": _zsh,
        "fish": _fish,
    }
    print(writers[args.shell](SUBCOMMANDS, actions), end="")
    return 0


def _bash(commands: dict[str, str], actions: dict[str, list[argparse.Action]]) -> str:
    """Return a function for `complete`, without the package bash-completion."""
    options, values, words = [], [], []
    for name, of_command in actions.items():
        options.append(f"        {name}) options={shlex.quote(' '.join(_options(of_command)))} ;;")
        for action in of_command:
            choices = _choices(action)
            if choices and action.option_strings:
                keys = "|".join(f"{name}:{option}" for option in action.option_strings)
                values.append(f"        {keys}) choices={shlex.quote(' '.join(choices))} ;;")
            elif choices:
                words.append(f"        {name}) words={shlex.quote(' '.join(choices))} ;;")
    lines = [
        "# Completes the telemetry command in bash.",
        "_telemetry() {",
        '    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        '    local command="" options="" choices="" words="" word',
        '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        '        case "$word" in -*) ;; *) command="$word"; break ;; esac',
        "    done",
        '    if [ -z "$command" ]; then',
        f'        COMPREPLY=($(compgen -W "{" ".join(commands)} --help --no-color --version" -- "$current"))',
        "        return",
        "    fi",
        '    case "$command" in',
        *options,
        "    esac",
        '    case "$command:$before" in',
        *values,
        "    esac",
        '    case "$command" in',
        *words,
        "    esac",
        '    if [ -n "$choices" ]; then',
        '        COMPREPLY=($(compgen -W "$choices" -- "$current"))',
        '    elif [ "${current:0:1}" = "-" ]; then',
        '        COMPREPLY=($(compgen -W "$options" -- "$current"))',
        '    elif [ -n "$words" ]; then',
        '        COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "    else",
        "        local IFS=$'\\n'",
        '        COMPREPLY=($(compgen -f -- "$current"))',
        "    fi",
        "}",
        "complete -o filenames -F _telemetry telemetry",
    ]
    return "\n".join(lines) + "\n"


def _zsh(commands: dict[str, str], actions: dict[str, list[argparse.Action]]) -> str:
    """Return a function for compinit."""
    lines = ["#compdef telemetry", "# Completes the telemetry command in zsh.", "_telemetry() {"]
    lines += ["    local -a commands", "    commands=("]
    lines += [f"        {shlex.quote(f'{name}:{summary}')}" for name, summary in commands.items()]
    lines += [
        "    )",
        "    if (( CURRENT == 2 )); then",
        "        _describe command commands",
        "        return",
    ]
    lines += ["    fi", '    local command="${words[2]}"', "    shift words", "    (( CURRENT-- ))"]
    lines.append('    case "$command" in')
    for name, of_command in actions.items():
        specs = ["'--no-color[print no colours]'", "'(-h --help)'{-h,--help}'[show the help]'"]
        for action in of_command:
            if action.dest == "help":
                continue
            text = _zsh_text(action)
            value = _zsh_value(action)
            if not action.option_strings:
                specs.append(shlex.quote(f"*:{action.dest}:{_zsh_choice(action)}"))
            for option in action.option_strings:
                specs.append(shlex.quote(f"*{option}[{text}]{value}"))
        lines.append(f"        {name}) _arguments {' '.join(specs)} ;;")
    lines += ["    esac", "}", "compdef _telemetry telemetry"]
    return "\n".join(lines) + "\n"


def _zsh_text(action: argparse.Action) -> str:
    return (action.help or "").replace("[", "(").replace("]", ")").replace(":", "\\:")


def _zsh_value(action: argparse.Action) -> str:
    return "" if action.nargs == 0 else f":{action.dest}:{_zsh_choice(action)}"


def _zsh_choice(action: argparse.Action) -> str:
    choices = _choices(action)
    return f"({' '.join(choices)})" if choices else "_files"


def _fish(commands: dict[str, str], actions: dict[str, list[argparse.Action]]) -> str:
    """Return `complete` lines."""
    lines = ["# Completes the telemetry command in fish.", "complete -c telemetry -e"]
    for name, summary in commands.items():
        lines.append(
            f"complete -c telemetry -n __fish_use_subcommand -f -a {name} -d {_fish_quoted(summary)}"
        )
    for name, of_command in actions.items():
        begin = f"complete -c telemetry -n '__fish_seen_subcommand_from {name}'"
        for action in of_command:
            choices = _choices(action)
            given = f" -x -a {_fish_quoted(' '.join(choices))}" if choices else ""
            if action.option_strings:
                names = " ".join(
                    f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
                    for option in action.option_strings
                )
                needs = " -r" if action.nargs != 0 and not choices else ""
                lines.append(f"{begin} {names}{needs}{given} -d {_fish_quoted(action.help or '')}")
            elif choices:
                lines.append(f"{begin} -f -a {_fish_quoted(' '.join(choices))}")
    lines.append("complete -c telemetry -l no-color -d 'print no colours'")
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _options(actions: Sequence[argparse.Action]) -> list[str]:
    return [*(option for action in actions for option in action.option_strings), "--no-color"]


def _choices(action: argparse.Action) -> list[str]:
    return [str(choice) for choice in action.choices] if action.choices is not None else []
