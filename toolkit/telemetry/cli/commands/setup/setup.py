"""`telemetry setup`: what is set up once: shell completion, an ai-toolkit checkout; messages, reports and plug-ins."""

from __future__ import annotations

import argparse
from typing import Final

from toolkit.telemetry.cli.setup import ai_toolkit, completion, message, plugins, usage
from toolkit.telemetry.cli.terminal import add_no_color_argument, describe_json

_FORMS: Final = {
    "ai-toolkit": (ai_toolkit, "record the trainings of an ai-toolkit checkout, by a file in its extensions"),
    "completion": (completion, "print a script that completes commands, options and paths in a shell"),
    "message": (message, "test the messages that a training's YAML asks for: send one, or print it"),
    "plugins": (
        plugins,
        "list the plug-ins that are installed, and what is wrong with those that are skipped",
    ),
    "usage": (usage, "show whether anonymous usage reports are sent, and everything they contain"),
}

JSON_FORM: Final = " ".join(
    f"With `{name}`, {module.JSON_FORM}"
    for name, (module, _) in _FORMS.items()
    if hasattr(module, "JSON_FORM")
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what there is to set up, each with arguments of its own."""
    forms = parser.add_subparsers(dest="form", metavar="WHAT", required=True)
    for name, (module, summary) in _FORMS.items():
        form = forms.add_parser(name, help=summary, description=f"{summary[:1].upper()}{summary[1:]}.")
        module.add_arguments(form)
        describe_json(form, getattr(module, "JSON_FORM", None))
        add_no_color_argument(form)


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    code: int = _FORMS[args.form][0].run(args)
    return code
