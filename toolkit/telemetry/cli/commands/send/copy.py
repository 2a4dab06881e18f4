"""`telemetry copy`: a back-up of an engine's tables, its restore, and a move to another engine."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.telemetry.cli.chosen_run import printable, refuse
from toolkit.telemetry.fleet.address import AddressError, address_of
from toolkit.telemetry.fleet.copy import EVERYTHING, ONLY_THERE, copy
from toolkit.telemetry.fleet.engine import Engine, EngineError
from toolkit.telemetry.fleet.options import file_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare both ends and what is copied."""
    for option, what in (("--from", "copied from"), ("--to", "copied to")):
        parser.add_argument(
            option,
            dest=f"{option[2:]}_place",
            metavar="PLACE",
            required=True,
            help=f"what is {what}: clickhouse://USER@HOST:PORT/DATABASE, or a folder",
        )
        parser.add_argument(
            f"{option}-password-file" if option == "--to" else "--password-file",
            metavar="FILE",
            type=file_path,
            help=f"file with the password of the engine that is {what}, readable by you alone",
        )
    parser.add_argument(
        "--ca", metavar="FILE", type=file_path, help="CA that signed the engines' certificates"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="copy everything, such as to a new engine (default: labels, notes and requests, which are in no folder)",
    )
    parser.epilog = (
        "To a folder it is a back-up, from a folder a restore. It can be repeated: rows replace themselves, and of "
        "two labels of a run the newer one stays. Exit code: 2 if it could not be done."
    )


def run(args: argparse.Namespace) -> int:
    """Copy; return 2 if it could not be done."""
    try:
        source = _end(args.from_place, args.password_file, args.ca)
        target = _end(args.to_place, args.to_password_file, args.ca)
        for sentence in copy(source, target, EVERYTHING if args.all else ONLY_THERE):
            print(printable(sentence), flush=True)
    except (AddressError, EngineError, OSError) as error:
        return refuse(str(error))
    return 0


def _end(place: str, password_file: Path | None, ca: Path | None) -> Engine | Path:
    if "://" in place:
        return Engine(address_of(place, password_file=password_file, ca=ca))
    return file_path(place)
