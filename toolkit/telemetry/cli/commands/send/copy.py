"""`telemetry copy`: runs to a bucket, from there, or from an engine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import LOGS, print_to_stderr, refuse
from toolkit.telemetry.cli.run_list import chosen_run
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.fleet.address import SCHEME, AddressError
from toolkit.telemetry.fleet.copy import Copied, copy_from_store, copy_to_store
from toolkit.telemetry.fleet.engine import Engine, EngineError
from toolkit.telemetry.fleet.object_store import FORMS, PlaceError, StoreError, object_store
from toolkit.telemetry.fleet.options import (
    add_engine_arguments,
    add_objects_arguments,
    chosen_engine,
    chosen_objects,
    fill_in,
)
from toolkit.telemetry.fleet.pull import PulledRun, PullError, pull
from toolkit.telemetry.fleet.run_folders import existing_folders, matching_folders
from toolkit.telemetry.fleet.schema import require_tables
from toolkit.telemetry.runfolder.folder_list import run_folders

_MOST_NAMED: Final = 5

JSON_FORM: Final = """\
to and from a bucket an object with `runs` (of which something was copied), `unchanged`, `failed`, `files` and \
`bytes`; from an engine one with `runs`: for each `path`, `lines`, `record_files`, `other_files` and `missing`, a \
sentence for each file that its records point to and that was not brought back."""


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
        "To and from a bucket it copies whole run folders, live ones too, and again only what changed, so it can be "
        "repeated every minute; files over 20 MB that the run did not write itself stay. From an engine, output.log "
        "and code/ stay on the machine that trained. `telemetry ship` brings runs to an engine. "
        "Exit code: 0; 1 if a run or a file is missing; 2 if nothing could be copied."
    )


def run(args: argparse.Namespace) -> int:
    """Copy; return 1 if a run or a file is missing, 2 if it could not be done."""
    is_from_given = args.engine is not None
    try:
        fill_in(args, "copy")
        if args.to.startswith(f"{SCHEME}://"):
            return refuse("`telemetry ship --once` brings runs to an engine")
        if "://" in args.to:
            if is_from_given:
                return refuse("--from is for a copy to a log directory")
            places = [Path(name) for name in args.runs] or args.folders or [LOGS]
            found = existing_folders(
                place if matching_folders(place) else chosen_run(place) for place in places
            )
            if not run_folders(found):
                print_to_stderr(f"no run of telemetry's own logger in {', '.join(map(str, places))}")
            store = object_store(args.to, args.objects_endpoint)
            return _show(copy_to_store(found, store, say=print_to_stderr), as_json=args.json)
        log_dir = Path(args.to).expanduser()
        if args.engine is not None and not args.engine.startswith(f"{SCHEME}:"):
            store = object_store(args.engine, args.objects_endpoint)
            done = copy_from_store(store, args.runs, log_dir, say=print_to_stderr)
            return _show(done, as_json=args.json)
        if args.engine is None and args.to != str(LOGS):
            shared = log_dir.absolute().as_uri()
            return refuse(
                f"--to {args.to} is a log directory and needs --from; as a shared folder: --to {shared}"
            )
        return _pull(args, log_dir)
    except (AddressError, EngineError, PlaceError, PullError, StoreError, OSError) as error:
        return refuse(str(error))


def _show(done: Copied, *, as_json: bool) -> int:
    if as_json:
        print_json({name: getattr(done, name) for name in ("runs", "unchanged", "failed", "files", "bytes")})
    else:
        print(
            f"{done.runs} runs copied, {done.files} files of {done.bytes} bytes; {done.unchanged} unchanged, "
            f"{done.failed} failed"
        )
    return 1 if done.failed else 0


def _pull(args: argparse.Namespace, log_dir: Path) -> int:
    objects, engine = chosen_objects(args), Engine(chosen_engine(args))
    if not args.runs:
        return refuse("which run? its id, or a name that only one run has")
    require_tables(engine)
    pulled = [pull(engine, name, log_dir, objects) for name in args.runs]
    if args.json:
        runs = [
            {
                "path": str(one.folder),
                "lines": one.lines,
                "record_files": one.files,
                "other_files": one.objects,
                "missing": list(one.missing),
            }
            for one in pulled
        ]
        print_json({"runs": runs})
    else:
        for one in pulled:
            _say(one, was_asked=objects is not None)
    return 1 if objects is not None and any(one.missing for one in pulled) else 0


def _say(pulled: PulledRun, *, was_asked: bool) -> None:
    files = f", {pulled.objects} other files" if pulled.objects else ""
    print(
        f"{pulled.folder}: {pulled.lines} lines in {pulled.files} record files{files}; no output.log and no code/"
    )
    if pulled.missing and not was_asked:
        print(f"{len(pulled.missing)} files that its records point to were not asked for; name --objects")
        return
    for reason in pulled.missing[:_MOST_NAMED]:
        print_to_stderr(reason)
    if len(pulled.missing) > _MOST_NAMED:
        print_to_stderr(f"and {len(pulled.missing) - _MOST_NAMED} more files")
