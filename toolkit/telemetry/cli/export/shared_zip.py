"""`telemetry export --to zip`: a copy of a run that is safe to post, and what was left out."""

from __future__ import annotations

import argparse
import zipfile
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import printable
from toolkit.telemetry.cli.run_list import chosen_run
from toolkit.telemetry.cli.terminal import print_json
from toolkit.telemetry.exchange.export_runs import whole
from toolkit.telemetry.privacy.bundle import INCLUDED, LEFT_OUT, Contents, RunBundle

_MOST_FIELDS: Final = 20
OPTIONS: Final = ("preview", "include")

JSON_FORM: Final = """\
`run`, `path` (of the zip; `null` with `--preview`), `bytes`, `folder` (that it unpacks to), `members`, `records` (how \
many each record file has), `left_out` (files), `lines_left_out`, `fields` (how many values of each were left out) and \
`names_replaced`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the zip contains."""
    parser.add_argument(
        "--preview", action="store_true", help="zip: print what it would contain; write nothing"
    )
    parser.add_argument(
        "--include",
        metavar="WHAT",
        action="append",
        choices=INCLUDED,
        default=[],
        help="zip: also text (names, prompts, messages and notes), output (what rank 0 printed) or code (that the run "
        "kept), without secrets, paths and addresses; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Write the zip and print what is in it."""
    folder, target, size = chosen_run(args.run), None, None
    bundle = RunBundle(folder, include=args.include)
    if args.preview:
        contents = bundle.preview()
    else:
        target = args.out or Path(f"{bundle.name}.zip")
        with whole(target, is_ours=_is_shared, force=args.force) as half:
            contents = bundle.write(half)
        size = target.stat().st_size
    if args.json:
        path = None if target is None else str(target)
        print_json({"run": str(folder), "path": path, "bytes": size, **asdict(contents)})
        return 0
    what = "The zip would contain" if size is None else f"{target}, {size / 1e3:,.0f} kB, contains"
    print(printable(what))
    _print_contents(contents)
    if args.preview:
        print("\nNothing was written.")
    elif args.include:
        print("\nLook through it before you post it: no program knows everything that is private to you.")
    return 0


def _is_shared(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith(f"/{LEFT_OUT}") for name in archive.namelist())


def _print_contents(contents: Contents) -> None:
    for member in contents.members:
        records = f"  {contents.records[member]:,} records" if member in contents.records else ""
        print(printable(f"  {contents.folder}/{member}{records}"))
    if contents.left_out:
        print(printable(f"files left out: {', '.join(contents.left_out)}"))
    if contents.lines_left_out:
        print(f"unreadable lines left out: {contents.lines_left_out:,}")
    shown = [f"{field} ({count:,})" for field, count in islice(contents.fields.items(), _MOST_FIELDS)]
    more = len(contents.fields) - len(shown)
    listed = ", ".join(shown) + (f" and {more:,} other fields" if more > 0 else "")
    print(printable(f"values left out: {listed or 'none'}"))
    if contents.names_replaced:
        print(f"names replaced by name_1, name_2 …: {contents.names_replaced:,}")
