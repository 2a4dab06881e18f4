"""`telemetry share`: write a zip of a run that is safe to post."""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import add_run_argument, chosen_run, printable, refuse
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.privacy.bundle import Contents, RunBundle

_MOST_FIELDS: Final = 20

JSON_FORM: Final = """\
an object with `run`, `path` (of the zip; `null` with `--preview`), `bytes`, `folder` (that it unpacks to), `members`, \
`records` (how many each record file has), `left_out` (files), `lines_left_out`, `fields` (how many values of each \
were left out) and `names_replaced`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and the file to write."""
    add_run_argument(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE.zip",
        type=Path,
        help="file to write (default: shared-run.zip in the current folder)",
    )
    parser.add_argument(
        "--preview", action="store_true", help="print what the zip would contain; write nothing"
    )
    parser.add_argument(
        "--with-text",
        action="store_true",
        help="include names, prompts, messages and notes, without secrets, paths and addresses",
    )
    parser.add_argument(
        "--with-output",
        action="store_true",
        help="include what rank 0 printed (output.log), without secrets, paths and addresses",
    )
    parser.add_argument(
        "--with-code",
        action="store_true",
        help="include the code that the run kept, without secrets, paths and addresses",
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
    try:
        bundle = RunBundle(
            folder,
            organisations=args.allow,
            with_text=args.with_text,
            with_output=args.with_output,
            with_code=args.with_code,
        )
        target = args.output or Path(f"{bundle.name}.zip")
        contents = bundle.preview() if args.preview else bundle.write(target)
    except FileExistsError:
        return refuse(f"{target} already exists and is not overwritten; choose another name with -o.")
    except OSError as error:
        return refuse(f"{folder} could not be shared: {error.strerror or error}")
    size = None if args.preview else target.stat().st_size
    if args.json:
        print_json(_as_json(folder, None if args.preview else target, size, contents))
        return 0
    print(
        printable(f"{target} would contain" if size is None else f"{target}, {size / 1e3:,.0f} kB, contains")
    )
    _print_contents(contents)
    if args.preview:
        print("\nNothing was written.")
    elif args.with_text or args.with_output or args.with_code:
        print("\nLook through it before you post it: no program knows everything that is private to you.")
    return 0


def _as_json(folder: Path, target: Path | None, size: int | None, contents: Contents) -> dict[str, Any]:
    return {
        "run": str(folder),
        "path": None if target is None else str(target),
        "bytes": size,
        "folder": contents.folder,
        "members": list(contents.members),
        "records": dict(contents.records),
        "left_out": list(contents.left_out),
        "lines_left_out": contents.lines_left_out,
        "fields": dict(contents.fields),
        "names_replaced": contents.renamed,
    }


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
    if contents.renamed:
        print(f"names replaced by name_1, name_2 …: {contents.renamed:,}")
