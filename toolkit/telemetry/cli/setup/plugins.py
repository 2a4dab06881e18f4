"""`telemetry setup plugins`: list the plug-ins of other packages that are installed here."""

from __future__ import annotations

import argparse
from typing import Final

from toolkit.telemetry.cli import main
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.core import plugins
from toolkit.telemetry.diagnostics.plugins import load_plugins as load_detectors
from toolkit.telemetry.importers.detect import formats
from toolkit.telemetry.logger.machine.samplers.registry import load_plugins as load_samplers
from toolkit.telemetry.mirrors.registry import load_plugins as load_mirrors

JSON_FORM: Final = """\
`{"plugins": […]}`; each has `kind` (importers, mirrors, samplers, detectors or commands), `name`, `package` with its \
version, and `problem` (why it is skipped, or `null`)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the output format."""
    add_json_argument(parser)
    parser.epilog = "Exit code: 0; 1 if one of them is skipped."


def run(args: argparse.Namespace) -> int:
    """Print each plug-in with its package, and why one is skipped; return 1 if one is."""
    for load in (formats, load_mirrors, load_samplers, load_detectors, main.load_plugins):
        load()
    found = [plugin for kind in plugins.KINDS for plugin in plugins.installed(kind)]
    if args.json:
        rows = [
            {"kind": each.kind, "name": each.name, "package": each.package, "problem": each.problem or None}
            for each in found
        ]
        print_json({"plugins": rows})
    else:
        for each in found:
            problem = f"  skipped: {each.problem}" if each.problem else ""
            print(f"{each.kind:<10} {each.name:<20} {each.package}{problem}")
        if not found:
            print("No plug-in is installed.")
    return 1 if any(each.problem for each in found) else 0
