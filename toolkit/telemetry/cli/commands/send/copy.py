"""`telemetry copy`: runs from folders, a bucket or an engine to a bucket or a folder."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import LOGS, print_to_stderr, refuse
from toolkit.telemetry.cli.run_list import chosen_run
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.fleet.address import SCHEME, AddressError
from toolkit.telemetry.fleet.copy import copy_runs
from toolkit.telemetry.fleet.engine import Engine, EngineError
from toolkit.telemetry.fleet.engine_runs import EngineRuns
from toolkit.telemetry.fleet.options import (
    add_engine_arguments,
    add_objects_arguments,
    chosen_engine,
    chosen_objects,
    fill_in,
)
from toolkit.telemetry.fleet.run_folders import existing_folders, matching_folders
from toolkit.telemetry.fleet.schema import require_tables
from toolkit.telemetry.fleet.stores import FORMS, FolderStore, PlaceError, Source, Store, StoreError, store_at
from toolkit.telemetry.runfolder.folder_list import run_folders

JSON_FORM: Final = """\
an object with `runs` (of which something was copied), `unchanged`, `failed`, `files`, `bytes` and `missing`, files \
that could not be copied."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the runs and both ends."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="to a bucket: log directories or run folders, or patterns such as '/scratch/*/logs', in quotes "
        f"(default: {LOGS}); from an engine: ids, or names that only one run has; from a bucket: names (default: all)",
    )
    add_engine_arguments(parser, "--from", f"where the runs are: {FORMS}, or an engine")
    parser.add_argument(
        "--to",
        metavar="PLACE",
        default=str(LOGS),
        help=f"where they go: {FORMS}, or a log directory (default: {LOGS})",
    )
    add_objects_arguments(parser, "from an engine: where sample images and other files were stored")
    add_json_argument(parser)
    parser.set_defaults(folders=None)
    parser.epilog = (
        "It copies whole run folders, live ones too, and again only what changed, so it can be repeated every minute; "
        "files over 20 MB that the run did not write itself stay, and a run that `copy` has not made is not replaced. "
        "An engine has no output.log and no code/. `telemetry ship` brings runs to an engine. "
        "Exit code: 0; 1 if there is no run, or a run or a file is missing; 2 if nothing could be copied."
    )


def run(args: argparse.Namespace) -> int:
    """Copy; return 1 if there is no run or a file of one is missing, 2 if it could not be done."""
    is_from_given = args.engine is not None
    try:
        fill_in(args, "copy")
        if args.to.startswith(f"{SCHEME}://"):
            return refuse("`telemetry ship --once` brings runs to an engine")
        is_log_dir = "://" not in args.to
        if is_log_dir and args.engine is None and args.to != str(LOGS):
            shared = Path(args.to).expanduser().absolute().as_uri()
            return refuse(
                f"--to {args.to} is a log directory and needs --from; as a shared folder: --to {shared}"
            )
        target: Store
        target = FolderStore(Path(args.to).expanduser()) if is_log_dir else store_at(args.to)
        source, wanted = _folders(args) if not (is_from_given or is_log_dir) else _elsewhere(args)
        done = copy_runs(source, target, wanted, say=print_to_stderr)
    except (AddressError, EngineError, PlaceError, StoreError, OSError) as error:
        return refuse(str(error))
    is_nothing = not (done.runs or done.unchanged or done.failed)
    if is_nothing:
        print_to_stderr(f"there is no run in {source}")
    if args.json:
        print_json(asdict(done))
    else:
        print(
            f"{done.runs} runs copied, {done.files} files of {done.bytes} bytes; {done.unchanged} unchanged, "
            f"{done.failed} failed, {done.missing} files missing"
        )
    return 1 if done.failed or done.missing or is_nothing else 0


def _folders(args: argparse.Namespace) -> tuple[Source, list[str]]:
    """Return the runs of this machine, and their names."""
    places = [Path(name) for name in args.runs] or args.folders or [LOGS]
    found: dict[str, Path] = {}
    folders = run_folders(
        existing_folders(place if matching_folders(place) else chosen_run(place) for place in places)
    )
    for folder in folders:
        if found.setdefault(folder.name, folder) != folder:
            print_to_stderr(f"{folder} is not copied: it has the name of {found[folder.name]}")
    return FolderStore(Path(", ".join(map(str, places))), found), list(found)


def _elsewhere(args: argparse.Namespace) -> tuple[Source, list[str]]:
    """Return the runs of a bucket, a shared folder or an engine, and the names that were given; none mean all."""
    if args.engine is not None and not args.engine.startswith(f"{SCHEME}:"):
        return store_at(args.engine), args.runs
    objects, engine = chosen_objects(args), Engine(chosen_engine(args))
    if not args.runs:
        raise StoreError("which run? its id, or a name that only one run has")
    require_tables(engine)
    runs = EngineRuns(engine, args.runs, objects)
    if runs.left_out:
        print_to_stderr(f"{runs.left_out} files that records point to are not copied; name --objects")
    return runs, runs.names
