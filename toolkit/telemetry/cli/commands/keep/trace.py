"""`telemetry trace`: export the spans of a run as a Chrome trace, for Perfetto."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import add_run_argument, chosen_run, printable, refuse
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.timing.chrome_trace import trace_of_folder

_STDOUT = "-"

JSON_FORM: Final = """\
an object with `run`, `path` (of the trace) and `bytes`. With `-o -` the trace itself is JSON, and `--json` changes \
nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and the file to write."""
    add_run_argument(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"file to write, or {_STDOUT} for stdout (default: RUN-trace.json in the current folder)",
    )
    add_json_argument(parser, "where the trace is as JSON")


def run(args: argparse.Namespace) -> int:
    """Write the trace and print where it is; return 2 if there is no run or the file cannot be written."""
    folder = chosen_run(args.run)
    if args.output == _STDOUT:
        try:
            for piece in trace_of_folder(folder):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            return refuse(f"{folder}: {error.strerror or error}")
        return 0
    target = Path(args.output) if args.output else Path(f"{folder.resolve().name}-trace.json")
    try:
        size = _write(folder, target)
    except OSError as error:
        return refuse(f"cannot write {target}: {error.strerror or error}")
    if args.json:
        print_json({"run": str(folder), "path": str(target), "bytes": size})
        return 0
    print(
        f"{printable(str(target))}: {size / 1e6:.3g} MB. Open it in https://ui.perfetto.dev or chrome://tracing;"
    )
    print("both read the file in the browser and upload nothing.")
    return 0


def _write(folder: Path, target: Path) -> int:
    # Under a temporary name until it is complete: half a trace cannot be opened. The name is random and must not exist,
    # because other users may be able to put a link in its place.
    temporary = target.with_name(f".{target.name}.{os.urandom(8).hex()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    size = 0
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in trace_of_folder(folder):
                size += file.write(piece)
        os.replace(temporary, target)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    return size
