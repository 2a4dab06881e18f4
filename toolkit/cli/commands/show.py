"""`telemetry show`: show where a run's folder is, and its last steps."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.chosen_run import add_run_argument, chosen_run, printable, refuse, status_of
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and how many rows to show."""
    add_run_argument(parser)
    parser.add_argument(
        "--rows", metavar="N", type=_positive, default=5, help="show the last N steps (default: 5)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the run's folder, its last rows and how to open it; return 1 if there is nothing to show."""
    folder = chosen_run(args.run)
    if folder is None:
        return 1

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
        with os.fdopen(open_regular(csv), "rb") as file:
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


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value
