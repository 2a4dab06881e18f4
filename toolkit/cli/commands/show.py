"""`telemetry show`: show a run, ours or another tool's: its series and its last steps."""

from __future__ import annotations

import argparse
import json
import os
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toolkit.cli.argument_types import whole
from toolkit.cli.chosen_run import add_run_argument, find_run, no_run_in, printable, refuse, status_of
from toolkit.importers.detect import find_sources, names_of
from toolkit.importers.record_file import source_of_folder
from toolkit.importers.source import RunSource
from toolkit.importers.summary import summaries
from toolkit.privacy.masking import Masker
from toolkit.runfolder.layout import METRICS_CSV, METRICS_JSONL
from toolkit.runfolder.safefile import open_regular

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = tuple(
    "global_step epoch train_loss lr grad_norm samples_per_sec sec_per_step cpu_mem_rss_mb".split()
)
"""Columns that most runs have and that fit in a terminal; columns that the run lacks are left out."""


_LARGEST = 4 * 1024**3
_MOST_EVENTS = 20
_LONGEST = 60

JSON_FORM: Final = """\
one object; [formats.md](formats.md#the-json-of-telemetry-show---json) describes it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and how many rows to show."""
    add_run_argument(parser)
    parser.add_argument(
        "--rows", metavar="N", type=whole(), default=5, help="show the last N steps (default: 5)"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the runs as one JSON object; docs/formats.md lists its fields",
    )
    parser.add_argument("--metrics", metavar="GLOB", help="only series whose names match, such as 'train/*'")
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        choices=names_of(),
        help="read RUN as another tool's log, in this format only",
    )
    parser.epilog = (
        "RUN may also be a file or folder of another tool: `telemetry formats` lists what can be read. "
        "Nothing in it is changed."
    )


def run(args: argparse.Namespace) -> int:
    """Print the run's folder, its last rows and how to open it; return 2 if there is nothing to show."""
    folder = find_run(args.run) if args.format is None else None
    if folder is None or args.json or args.metrics:
        return _show_series(args, folder)
    csv = folder / METRICS_CSV
    again = f"'telemetry repair {folder}' rebuilds it from {METRICS_JSONL}."
    if not os.path.lexists(csv):
        return refuse(f"{csv} does not exist; {again}")

    try:
        import pandas as pd
    except ModuleNotFoundError:
        return refuse(f"The run is in {folder}. To show its rows: pip install pandas")

    try:
        # open_regular: the folder is not trusted, and the file may be a link out of it, or a pipe.
        with os.fdopen(open_regular(csv, only_name=True), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                return refuse(f"{csv} is empty; {again}")
            if size > _LARGEST:
                return refuse(f"{csv} has {size:,} bytes, too many to load at once.")
            # In chunks, pandas would guess a column's type per chunk and warn if the guesses differ.
            table = pd.read_csv(file, low_memory=False)
    except (OSError, ValueError, OverflowError) as error:
        return refuse(f"{csv} is not a readable CSV file ({_first_line(error)}); {again}")
    if "event" not in table.columns:
        return refuse(f"{csv} is not a metrics table: it has no column 'event'; {again}")
    print(
        printable(f"{folder}: {status_of(folder)}, {len(table)} rows ({_count_of_events(table)})"),
        end="\n\n",
    )
    for line in last_steps(table, args.rows).to_string(index=False).split("\n"):
        print(printable(line))
    print(f"\nTo open it yourself:\n\n{_recipe(csv)}")
    return 0


def _show_series(args: argparse.Namespace, folder: Path | None) -> int:
    """Print the series of our run in `folder`, or of the runs of other tools at RUN."""
    sources: list[RunSource] = []
    notes: list[str] = []
    if folder is not None:
        sources = [source_of_folder(folder)]
    else:
        try:
            found = find_sources(args.run, only=args.format)
        except OSError:
            return refuse(no_run_in(args.run))
        sources, notes = found.runs, found.notes
    if not sources:
        return refuse(no_run_in(args.run, notes))
    found_runs, problems = summaries(sources, time.time())
    masker = Masker()
    for run in found_runs:
        run["config"] = masker.mask(run["config"])
    runs = [_chosen(run, args.metrics) for run in found_runs]
    notes += problems
    if args.json:
        # Names and texts of other tools may hold lone surrogates, which only ASCII output can carry.
        print(
            json.dumps({"path": os.fspath(args.run), "runs": runs, "notes": notes}, indent=1, allow_nan=False)
        )
        return 0
    for run in runs:
        _print_run(run)
    for note in notes:
        print(printable(note))
    return 0


def _chosen(run: dict[str, Any], glob: str | None) -> dict[str, Any]:
    if glob is not None:
        for part in (run, *run["pieces"]):
            for kind in ("metrics", "system"):
                part[kind] = {name: series for name, series in part[kind].items() if fnmatchcase(name, glob)}
    return run


def _print_run(run: dict[str, Any]) -> None:
    series = {**run["metrics"], **run["system"]}
    status = run["status"]["state"].replace("unknown", "no end written")
    print(printable(f"{run['name']}: {run['format']}, {status}, {len(series)} series"))
    for note in run["notes"]:
        print(printable(f"  note: {note}"))
    for piece in run["pieces"]:
        for reason, count in piece["passed_over"].items():
            print(printable(f"  not read: {count:,} {reason} ({piece['path']})"))
    width = min(max(map(len, series), default=0), _LONGEST)
    if series:
        print(
            f"  {'series':<{width}}  {'points':>9} {'steps':>17} {'first':>11} {'last':>11} {'min':>11} {'max':>11}"
        )
    for name, found in series.items():
        first, last = found["first"], found["last"]
        steps = "" if first["step"] is None else f"{first['step']}..{last['step']}"
        numbers = (first["value"], last["value"], found["min"], found["max"])
        odd = sum(found[kind] for kind in ("nan", "inf", "neg_inf"))
        cells = " ".join(f"{_short(value):>11}" for value in numbers)
        shown = printable(f"{name[:_LONGEST]:<{width}}")
        print(f"  {shown}  {found['count']:>9,} {steps:>17} {cells}{f'  {odd:,} not finite' if odd else ''}")
    print()


def _short(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.5g}"


def last_steps(table: pd.DataFrame, rows: int) -> pd.DataFrame:
    """Return the last `rows` step records of `table`, with the most useful columns."""
    columns = [name for name in _COLUMNS if name in table.columns]
    steps: pd.DataFrame = table.loc[table["event"] == "step", columns]
    # Records without a step make pandas store integers as floats; without them they can be integers again.
    return steps.tail(rows).convert_dtypes()


def _count_of_events(table: pd.DataFrame) -> str:
    counts = table["event"].value_counts()
    shown = [f"{count} {str(event)[:_LONGEST]}" for event, count in counts.head(_MOST_EVENTS).items()]
    more = len(counts) - len(shown)
    return ", ".join([*shown, *([f"{more} other kinds"] if more else [])])


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]


def _recipe(csv: Path) -> str:
    # Escaped if the path needs it in Python source, or contains terminal control characters.
    path = csv.as_posix()
    quoted = f'"{path}"' if path.isprintable() and not {'"', "\\"} & set(path) else ascii(path)
    return (
        "    import pandas as pd\n"
        f"    table = pd.read_csv({quoted})\n"
        '    steps = table[table["event"] == "step"]\n'
    )
