"""`telemetry pull`: a run folder back from the engine."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.cli.chosen_run import LOGS, printable, refuse
from toolkit.cli.engine_arguments import add_engine_arguments, chosen_engine
from toolkit.fleet.address import AddressError
from toolkit.fleet.engine import Engine, EngineError
from toolkit.fleet.pull import PullError, pull
from toolkit.fleet.schema import require_tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run, the engine and the folder."""
    parser.add_argument("run", metavar="RUN", help="a run id, or a name that only one run has")
    add_engine_arguments(parser, "--from")
    parser.add_argument(
        "--to", metavar="DIR", type=Path, default=LOGS, help=f"log directory for the folder (default: {LOGS})"
    )


def run(args: argparse.Namespace) -> int:
    """Write the run folder; return 1 if it could not be done."""
    try:
        engine = Engine(chosen_engine(args))
        require_tables(engine)
        pulled = pull(engine, args.run, args.to)
    except (AddressError, EngineError, PullError, OSError) as error:
        return refuse(str(error))
    print(printable(f"{pulled.folder}: {pulled.lines} lines in {pulled.files} record files"))
    return 0
