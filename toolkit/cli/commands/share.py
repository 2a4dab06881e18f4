"""`telemetry share`: write a redacted zip of a run that is safe to post."""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from toolkit.cli.chosen_run import COULD_NOT, add_run_argument, chosen_run, printable, refuse
from toolkit.cli.terminal import add_json_argument, print_json
from toolkit.privacy.bundle import RunBundle
from toolkit.privacy.bundle_contents import Contents
from toolkit.privacy.model_names import PUBLIC_ORGANISATIONS

_MOST_FIELDS: Final = 4
_MOST_TEXTS: Final = 20
_WIDTH: Final = 100

JSON_FORM: Final = """\
an object with `run`, `path` (of the zip; `null` with `--preview`), `bytes`, `folder` (that it unpacks to), `members`, \
`records` (how many each record file has), `left_out`, `lines_left_out`, `replaced` (how often each kind) and `places` \
(`kind`, `field` and `count` of each)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and the file to write."""
    add_run_argument(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE.zip",
        type=Path,
        help="file to write (default: RUN-shared.zip in the current folder)",
    )
    parser.add_argument(
        "--preview",
        action="store_true",
        help="print what the zip would contain and what would be replaced; write nothing",
    )
    parser.add_argument(
        "--allow",
        metavar="ORGANISATION",
        action="append",
        default=[],
        help="also keep model names of this organisation; may be repeated",
    )
    add_json_argument(parser)
    parser.epilog = "Exit code: 0 if the zip was written or previewed, else 2."


def run(args: argparse.Namespace) -> int:
    """Write the zip and print what is in it; return 2 if there is no run or the file cannot be written."""
    folder = chosen_run(args.run)
    if folder is None:
        return COULD_NOT
    try:
        bundle = RunBundle(folder, allowed_organisations=PUBLIC_ORGANISATIONS | {*args.allow})
        target = args.output or Path(f"{bundle.name}-shared.zip")
        contents = bundle.preview() if args.preview else bundle.write(target)
    except FileExistsError:
        return refuse(f"{target} already exists and is not overwritten; choose another name with -o.")
    except OSError as error:
        return refuse(f"{folder} could not be shared: {error.strerror or error}")
    if args.json:
        print_json(_as_json(folder, None if args.preview else target, contents))
        return 0
    print(printable(f"{target} would contain" if args.preview else f"{target}, {_size_of(target)}, contains"))
    _print_contents(contents)
    if args.preview:
        _print_texts(contents)
        print("\nNothing was written.")
    else:
        print("\nLook through it before you post it: no program knows everything that is private to you.")
    return 0


def _as_json(folder: Path, target: Path | None, contents: Contents) -> dict[str, Any]:
    return {
        "run": str(folder),
        "path": None if target is None else str(target),
        "bytes": None if target is None else target.stat().st_size,
        "folder": contents.folder,
        "members": list(contents.members),
        "records": dict(contents.records),
        "left_out": list(contents.left_out),
        "lines_left_out": contents.lines_left_out,
        "replaced": dict(contents.replaced),
        "places": [{"kind": kind, "field": field, "count": count} for kind, field, count in contents.places],
    }


def _size_of(path: Path) -> str:
    size = path.stat().st_size
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"


def _print_contents(contents: Contents) -> None:
    for member in contents.members:
        records = f"  {contents.records[member]:,} records" if member in contents.records else ""
        print(printable(f"  {contents.folder}/{member}{records}"))
    if contents.left_out:
        print(printable(f"left out: {', '.join(contents.left_out)}"))
    if contents.lines_left_out:
        print(f"left out: {contents.lines_left_out:,} unreadable lines")
    fields: dict[str, list[str]] = defaultdict(list)
    for kind, field, count in contents.places:
        fields[kind].append(f"{field} ({count:,})")
    print("replaced:" if contents.replaced else "replaced: nothing")
    for kind, count in contents.replaced.items():
        more = len(fields[kind]) - _MOST_FIELDS
        where = ", ".join(fields[kind][:_MOST_FIELDS]) + (f" and {more:,} other fields" if more > 0 else "")
        print(printable(f"  {kind:8} {count:>7,}  in {where}"))


def _print_texts(contents: Contents) -> None:
    if contents.texts:
        print("some of the texts that stay as they are:")
    for field, text in contents.texts[:_MOST_TEXTS]:
        shown = f"  {field}: {text}"
        print(printable(shown if len(shown) <= _WIDTH else f"{shown[:_WIDTH]}…"))
