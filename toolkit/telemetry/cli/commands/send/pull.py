"""`telemetry pull`: a run folder back from the engine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import LOGS, printable, refuse
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.fleet.address import AddressError
from toolkit.telemetry.fleet.engine import Engine, EngineError
from toolkit.telemetry.fleet.object_store import PlaceError
from toolkit.telemetry.fleet.options import (
    add_engine_arguments,
    add_objects_arguments,
    chosen_engine,
    chosen_objects,
    fill_in,
)
from toolkit.telemetry.fleet.pull import PullError, pull
from toolkit.telemetry.fleet.schema import require_tables

_MOST_NAMED: Final = 5

JSON_FORM: Final = """\
an object with `path`, `lines`, `record_files`, `other_files` and `missing`: a sentence for each file that its records \
point to and that was not brought back."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run, the engine and the folder."""
    parser.add_argument("run", metavar="RUN", help="a run id, or a name that only one run has")
    add_engine_arguments(parser, "--from")
    parser.add_argument(
        "--to", metavar="DIR", type=Path, default=LOGS, help=f"log directory for the folder (default: {LOGS})"
    )
    add_objects_arguments(parser, "where sample images and other files were stored")
    add_json_argument(parser)
    parser.epilog = (
        "output.log and code/ stay on the machine that trained. "
        "Exit code: 0; 1 if a file that its records point to is missing; 2 if the run could not be pulled."
    )


def run(args: argparse.Namespace) -> int:
    """Write the run folder; return 1 if a file is missing, 2 if it could not be done."""
    try:
        fill_in(args, "pull")
        objects = chosen_objects(args)
        engine = Engine(chosen_engine(args))
        require_tables(engine)
        pulled = pull(engine, args.run, args.to, objects)
    except (AddressError, EngineError, PlaceError, PullError, OSError) as error:
        return refuse(str(error))
    if args.json:
        print_json(
            {
                "path": str(pulled.folder),
                "lines": pulled.lines,
                "record_files": pulled.files,
                "other_files": pulled.objects,
                "missing": list(pulled.missing),
            }
        )
        return 1 if pulled.missing and objects is not None else 0
    files = f", {pulled.objects} other files" if pulled.objects else ""
    print(
        f"{pulled.folder}: {pulled.lines} lines in {pulled.files} record files{files}; no output.log and no code/"
    )
    if pulled.missing and objects is None:
        print(f"{len(pulled.missing)} files that its records point to were not asked for; name --objects")
        return 0
    for reason in pulled.missing[:_MOST_NAMED]:
        print(printable(reason), file=sys.stderr)
    if len(pulled.missing) > _MOST_NAMED:
        print(f"and {len(pulled.missing) - _MOST_NAMED} more files", file=sys.stderr)
    return 1 if pulled.missing else 0
