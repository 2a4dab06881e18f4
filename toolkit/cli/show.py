"""`telemetry show`: where a run's folder is, and its last steps as pandas sees them."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.chosen_run import add_run_argument, chosen_run, printable, refuse
from toolkit.runfolder.end_record import with_end_record
from toolkit.runfolder.layout import MANIFEST, METRICS_CSV, METRICS_JSONL
from toolkit.runfolder.manifest import ManifestError, read_manifest
from toolkit.runfolder.safefile import open_regular
from toolkit.runfolder.status import work_out_status

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = (
    "global_step",
    "epoch",
    "train_loss",
    "lr",
    "grad_norm",
    "samples_per_sec",
    "sec_per_step",
    "cpu_mem_rss_mb",
)
"""What most runs have and a terminal is wide enough for; a column that the run lacks is left out."""


_LARGEST = 4 * 1024**3
_MOST_EVENTS = 20
_LONGEST = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run to show and how many of its rows."""
    add_run_argument(parser)
    parser.add_argument("--rows", type=_positive, default=5, help="how many steps to show (default: 5)")


def run(args: argparse.Namespace) -> int:
    """Print the run's folder, its last rows and how to open it; 1 where there is nothing to show, with the reason."""
    folder = chosen_run(args.run)
    if folder is None:
        return 1

    csv = folder / METRICS_CSV
    again = f"'telemetry repair {folder}' makes it from {METRICS_JSONL}."
    if not os.path.lexists(csv):
        return refuse(f"{csv} is not there; {again}")

    try:
        import pandas as pd
    except ModuleNotFoundError:
        return refuse(f"The run is in {folder}. Showing its rows needs pandas: pip install pandas")

    try:
        # Not by its name: a folder may be anybody's, and then the name may be a link out of it, or a pipe.
        with os.fdopen(open_regular(csv), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                return refuse(f"{csv} is empty; {again}")
            if size > _LARGEST:
                return refuse(f"{csv} has {size:,} bytes, more than pandas should be given at once.")
            # In pieces, pandas would guess a column's type for each piece and warn where the guesses differ.
            table = pd.read_csv(file, low_memory=False)
    except (OSError, ValueError, OverflowError) as error:
        return refuse(f"{csv} cannot be read as a table ({_first_line(error)}); {again}")
    if "event" not in table.columns:
        return refuse(f"{csv} is no table of records: it has no column 'event'; {again}")
    print(
        printable(f"{folder}: {_status_of(folder)}, {len(table)} rows ({_count_of_events(table)})"),
        end="\n\n",
    )
    for line in last_steps(table, args.rows).to_string(index=False).split("\n"):
        print(printable(line))
    print(f"\nTo open it yourself:\n\n{_recipe(csv)}")
    return 0


def last_steps(table: pd.DataFrame, rows: int) -> pd.DataFrame:
    """Return the last `rows` step records of `table`, with the columns worth a glance."""
    columns = [name for name in _COLUMNS if name in table.columns]
    steps: pd.DataFrame = table.loc[table["event"] == "step", columns]
    # Beside records that have no step, pandas keeps whole numbers as floats; among steps they can be whole again.
    return steps.tail(rows).convert_dtypes()


def _status_of(folder: Path) -> str:
    try:
        return work_out_status(with_end_record(read_manifest(folder), folder), time.time()).name
    except (OSError, ManifestError):
        return f"no readable {MANIFEST}"


def _count_of_events(table: pd.DataFrame) -> str:
    counts = table["event"].value_counts()
    told = [f"{count} {str(event)[:_LONGEST]}" for event, count in counts.head(_MOST_EVENTS).items()]
    more = len(counts) - len(told)
    return ", ".join([*told, *([f"{more} other kinds"] if more else [])])


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]


def _recipe(csv: Path) -> str:
    # As Python would write it where the plain way would be no text of Python's, or command the terminal.
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
