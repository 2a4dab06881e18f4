"""`telemetry ship`: copy the records of run folders into ClickHouse."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

from toolkit.telemetry.cli.argument_types import whole
from toolkit.telemetry.cli.chosen_run import LOGS, print_to_stderr, printable, refuse
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.fleet.address import Address, AddressError
from toolkit.telemetry.fleet.engine import Engine, EngineError
from toolkit.telemetry.fleet.objects import ObjectShipper
from toolkit.telemetry.fleet.options import (
    add_engine_arguments,
    add_objects_arguments,
    chosen_engine,
    chosen_objects,
    file_path,
    fill_in,
)
from toolkit.telemetry.fleet.run_folders import existing_folders
from toolkit.telemetry.fleet.run_rows import SaidByShipper, reports_of_shippers
from toolkit.telemetry.fleet.schema import require_tables, set_up
from toolkit.telemetry.fleet.shipping.shipper import DRAIN_S, Shipper
from toolkit.telemetry.fleet.shipping.verify import Lag, lags_of
from toolkit.telemetry.fleet.stores import PlaceError, StoreError
from toolkit.telemetry.fleet.teams import make_team, team_address

LATE_S: Final = 60.0
"""A shipper that has not shipped a record for this long is behind."""

JSON_FORM: Final = """\
with `--once` and `--verify` an object with `lines`, `record_files`, `files_stored`, `runs_waiting` and `problems`; \
with `--status` one with `record_files`, `bytes_behind`, `late`, `behind` (`path`, `bytes`, `age_s`) and \
`shippers`; with `--set-up` one with `done` and `grants`. A shipper that keeps running has none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folders, the engine, and what to do."""
    parser.add_argument(
        "folders",
        metavar="DIR",
        nargs="*",
        type=Path,
        help="log directories or run folders, or patterns such as '/scratch/*/logs', in quotes; those that are not "
        f"there yet are waited for (default: {LOGS})",
    )
    add_engine_arguments(parser, "--to")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--once", action="store_true", help="ship what is there now and exit")
    what.add_argument(
        "--verify", action="store_true", help="also compare it with the engine, and send again what differs"
    )
    what.add_argument(
        "--status", action="store_true", help="show how far behind the engine is; exit code 1 after 60 s"
    )
    what.add_argument(
        "--set-up", action="store_true", help="make the tables that are missing, and with --team its users"
    )
    add_objects_arguments(parser, "also store sample images and other files that a run did not write itself")
    parser.add_argument(
        "--team",
        metavar="NAME",
        help="with --set-up: make the database telemetry_NAME, or that of the address, and its users NAME_ship, "
        "NAME_page and NAME_reader",
    )
    parser.add_argument(
        "--secrets",
        metavar="DIR",
        type=file_path,
        help="with --team: folder for the files with the users' passwords and fleet.toml; none is overwritten",
    )
    parser.add_argument(
        "--keep-days",
        metavar="DAYS",
        type=whole(0),
        help="with --set-up: the engine removes runs that were created longer ago; 0 keeps all (default: as it is)",
    )
    parser.add_argument(
        "--deliver-requests",
        action="store_true",
        default=None,
        help="deliver requests from pages to the runs here (default: none are delivered; see docs/fleet.md)",
    )
    parser.add_argument(
        "--drain-timeout",
        metavar="SECONDS",
        type=whole(),
        help=f"how long it ships what is left when it is stopped by SIGTERM (default: {DRAIN_S:.0f})",
    )
    add_json_argument(parser)
    parser.epilog = (
        "It ships until it is stopped, and keeps nothing on the node: start it again at any time, anywhere. "
        "While the engine is away, records stay in their files."
    )


def run(args: argparse.Namespace) -> int:
    """Do what was asked; return 1 if files were not shipped or users not made, 2 if it could not be done."""
    try:
        if args.json and not (args.once or args.verify or args.status or args.set_up):
            return refuse("--json needs --once, --verify, --status or --set-up")
        fill_in(args, "set-up" if args.set_up else "status" if args.status else "ship")
        folders = args.folders or [LOGS]
        address = chosen_engine(args)
        if args.set_up:
            return _set_up(args, address)
        # A shipper that keeps running expands patterns itself, and waits for what is not there yet.
        is_short = args.once or args.verify or args.status
        there = existing_folders(folders if is_short else [each for each in folders if each.exists()])
        folders = there if is_short else folders
        if args.status:
            return _status(address, folders, as_json=args.json)
        return _ship(address, folders, args)
    except (AddressError, EngineError, PlaceError, StoreError, OSError) as error:
        return refuse(str(error))


def _set_up(args: argparse.Namespace, address: Address) -> int:
    if (args.team is None) != (args.secrets is None):
        return refuse(
            "--team NAME and --secrets DIR go together: the passwords of its users are written there"
        )
    if args.team is not None:
        address = team_address(address, args.team)
    done, rest = [set_up(address, args.keep_days)], list[str]()
    if args.team is not None:
        said, rest = make_team(address, args.team, args.secrets)
        done += said
    # A script that sets up must not go on without the users.
    code = 1 if rest else 0
    if args.json:
        print_json({"done": done, "grants": rest})
        return code
    for line in done:
        print(printable(line))
    for statement in ("", "-- What an administrator has to run:", *rest) if rest else ():
        print(f"{statement};" if statement in rest else statement)
    return code


def _status(address: Address, folders: list[Path], *, as_json: bool) -> int:
    engine = Engine(address)
    lags = lags_of(engine, folders, keep_days=require_tables(engine).keep_days)
    behind = sorted((lag for lag in lags if lag.bytes), key=lambda lag: lag.since)
    is_late = any(_age(lag) > LATE_S for lag in behind)
    said = [_said_by(report) for report in reports_of_shippers(engine)]
    found = {
        "record_files": len(lags),
        "bytes_behind": sum(lag.bytes for lag in behind),
        "late": is_late,
        "behind": [{"path": str(lag.path), "bytes": lag.bytes, "age_s": _age(lag)} for lag in behind],
        "shippers": said,
    }
    if as_json:
        print_json(found)
        return 1 if is_late else 0
    print(f"{len(lags)} record files, {found['bytes_behind']} bytes behind in {len(behind)} of them")
    for line in (
        *(f"{lag.path}: {lag.bytes} bytes, {_age(lag):.0f} s" for lag in behind[:20]),
        *said,
    ):
        print(printable(line))
    return 1 if is_late else 0


def _said_by(report: SaidByShipper) -> str:
    ahead = report.clock_ahead_s
    clock = f", its clock is {ahead:+.0f} s off" if abs(ahead) > 2 else ""
    return f"{report.node}: {report.files} files, {report.behind} bytes behind, reported {report.age_s} s ago{clock}"


def _age(lag: Lag) -> float:
    return max(0.0, time.time() - lag.since)


def _ship(address: Address, folders: list[Path], args: argparse.Namespace) -> int:
    store = chosen_objects(args)
    objects = ObjectShipper(store, say=print_to_stderr) if store is not None else None
    shipper = Shipper(
        Engine(address),
        folders,
        objects=objects,
        say=print_to_stderr,
        delivers_requests=bool(args.deliver_requests),
    )
    if not (args.once or args.verify):
        stop = threading.Event()
        _stop_on_signal(stop)
        shipper.run(stop, args.drain_timeout or DRAIN_S)
        return 0
    shipper.start()
    shipper.ship_all()
    if args.verify:
        for line in shipper.verify():
            print_to_stderr(line)
        shipper.ship_all()
    problems = [file.problem for file in shipper.files if file.problem]
    stored, waiting = (None, None) if objects is None else (objects.totals.stored, objects.totals.waiting)
    if args.json:
        print_json(
            {
                "lines": shipper.totals.lines,
                "record_files": len(shipper.files),
                "files_stored": stored,
                "runs_waiting": waiting,
                "problems": problems,
            }
        )
    else:
        print(printable(f"{shipper.totals.lines} lines shipped, {len(shipper.files)} record files"))
        if objects is not None:
            print(f"{stored} other files stored, those of {waiting} runs wait")
    return 1 if problems or (objects is not None and objects.is_behind) else 0


def _stop_on_signal(stop: threading.Event) -> None:
    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        # The next one ends the process at once.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, handle)
