"""`telemetry show`: show a run, ours or another tool's: its series, its errors, what its model answered."""

from __future__ import annotations

import argparse
import json
import os
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.argument_types import refuse_misplaced, whole
from toolkit.telemetry.cli.chosen_run import add_format_argument, add_run_argument, printable
from toolkit.telemetry.cli.run_list import as_given, found_at, source_for
from toolkit.telemetry.cli.show import completions, errors
from toolkit.telemetry.cli.terminal import Column, add_json_argument, number_text, print_table
from toolkit.telemetry.importers.formats.record_file import OURS
from toolkit.telemetry.importers.summary import summaries
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.metrics import NOT_RESULTS, OF_THE_MACHINE
from toolkit.telemetry.runfolder.records import is_spread

_FOLDED: Final = "steps_folded"
_MOST_ROWS: Final = 100_000
_LONGEST: Final = 60

JSON_FORM: Final = f"""\
one object; docs/formats.md describes it. With `--errors`, \
{errors.JSON_FORM} With `--completions`, {completions.JSON_FORM}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and how many rows to show."""
    add_run_argument(parser)
    parser.add_argument(
        "--rows",
        metavar="N",
        type=whole(high=_MOST_ROWS),
        help="with --completions: the newest N (default: 5)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--errors",
        action="store_true",
        help="show what failed and where it hung instead, with stacks and counts",
    )
    what.add_argument("--completions", action="store_true", help="show what its model answered instead")
    parser.add_argument(
        "--search", metavar="TEXT", default="", help="with --completions: only those that contain this text"
    )
    parser.add_argument(
        "--full", action="store_true", help="with --completions: whole texts instead of their first line"
    )
    add_json_argument(parser)
    parser.add_argument("--metrics", metavar="GLOB", help="only series whose names match, such as 'train/*'")
    add_format_argument(parser)
    parser.epilog = (
        "RUN may also be a file or folder of another tool: `telemetry ls --formats` lists what can be read. "
        "Nothing in it is changed. Exit code: 0; 1 if --completions finds none; 2 if there is no run."
    )


def run(args: argparse.Namespace) -> int:
    """Print the series and how to open them, or what was asked for; return 2 if there is nothing."""
    if not args.completions:
        refuse_misplaced(args, ("search", "full", "rows"), "--completions")
    if args.errors or args.completions:
        refuse_misplaced(args, ("metrics", "format"), "the series of a run")
        return errors.run(args) if args.errors else completions.run(args)
    found = found_at(args.run, args.format, deleted=True)
    notes, runs, masker = [*found.notes], [], Masker()
    for listed in found.runs:
        summary, problems = summaries([source_for(listed)], time.time())
        notes += problems
        for run in summary:
            if listed.source is None:
                # As `ls` and the pages say it: the records alone do not know of a stop, nor that a run is lost.
                run["name"], run["status"]["state"] = listed.called, listed.card.status.name
            run.update(
                masker.mask({name: run[name] for name in ("name", "group", "config", "tags", "notes")})
            )
            runs.append(_chosen(run, args.metrics))
    if args.json:
        # Names and texts of other tools may hold lone surrogates, which only ASCII output can carry.
        print(
            json.dumps({"path": os.fspath(args.run), "runs": runs, "notes": notes}, indent=1, allow_nan=False)
        )
        return 0
    for run in runs:
        _print_run(run, is_whole=args.metrics is not None)
    for note in notes:
        print(printable(note))
    if found.runs[0].source is None:
        print(f"To open it yourself:\n\n{_recipe(as_given(found.runs[0].path, args.run))}")
    return 0


def _chosen(run: dict[str, Any], glob: str | None) -> dict[str, Any]:
    if glob is not None:
        for part in (run, *run["pieces"]):
            for kind in ("metrics", "system"):
                part[kind] = {name: series for name, series in part[kind].items() if fnmatchcase(name, glob)}
    return run


def _print_run(run: dict[str, Any], *, is_whole: bool) -> None:
    """Print the series; of a run of ours those of the machine, of time and of folded steps only with `is_whole`."""
    series = {**run["metrics"], **run["system"]}
    others = [] if is_whole or run["format"] != OURS else [name for name in series if _is_other(name, run)]
    status = run["status"]["state"].replace("unknown", "no end written")
    print(printable(f"{run['name']}: {run['format']}, {status}, {len(series)} series"))
    if others:
        print(f"  {len(others)} of the machine, of time and of folded steps: --metrics '*' shows them, too")
    series = {name: found for name, found in series.items() if name not in others}
    for note in run["notes"]:
        print(printable(f"  note: {note}"))
    for piece in run["pieces"]:
        for reason, count in piece["passed_over"].items():
            print(printable(f"  not read: {count:,} {reason} ({piece['path']})"))
    titles = ("points", "steps", "first", "last", "min", "max", "not finite")
    if series:
        print_table(
            [Column("series"), *(Column(title, right=True, keep=True) for title in titles)],
            [_row(name, found) for name, found in series.items()],
        )
    print()


def _is_other(name: str, run: dict[str, Any]) -> bool:
    is_measured = name in run["system"] or name.startswith((*NOT_RESULTS, *OF_THE_MACHINE))
    return is_measured or name == _FOLDED or is_spread(name, run["metrics"])


def _row(name: str, series: dict[str, Any]) -> list[str]:
    first, last = series["first"], series["last"]
    steps = "" if first["step"] is None else f"{first['step']}..{last['step']}"
    numbers = (first["value"], last["value"], series["min"], series["max"])
    odd = sum(series[kind] for kind in ("nan", "inf", "neg_inf"))
    cells = [value if isinstance(value, str) else number_text(value) for value in numbers]
    return [name[:_LONGEST], f"{series['count']:,}", steps, *cells, f"{odd:,}" if odd else ""]


def _recipe(folder: Path) -> str:
    # Escaped if the path needs it in Python source, or contains terminal control characters.
    path = folder.as_posix()
    quoted = f'"{path}"' if path.isprintable() and not {'"', "\\"} & set(path) else ascii(path)
    return f"    from toolkit.telemetry import read_run\n    steps = read_run({quoted}).frame()  # needs pandas\n"
