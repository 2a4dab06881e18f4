"""`telemetry ls`: list runs, ours and those of other tools."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.argument_types import whole
from toolkit.telemetry.cli.chosen_run import add_paths_argument, printable, refuse, size_of
from toolkit.telemetry.cli.run_columns import columns_of
from toolkit.telemetry.cli.run_list import ListedRun, RunList, as_json, list_runs
from toolkit.telemetry.cli.terminal import Progress, add_json_argument, print_json, print_table
from toolkit.telemetry.core.install import install_command
from toolkit.telemetry.core.run_search import QueryError, parse
from toolkit.telemetry.formulas.formula import is_formula
from toolkit.telemetry.importers.detect import formats, names_of
from toolkit.telemetry.importers.formats.record_file import OURS
from toolkit.telemetry.runs.listing.run_listing import with_last_values
from toolkit.telemetry.runs.listing.run_table import formula_problem
from toolkit.telemetry.runs.listing.search import unknown_among, value_of
from toolkit.telemetry.runs.store import UNREADABLE, RunQuery

JSON_FORM: Final = """\
an object with `runs`, `notes` and `missing`. `missing` has a sentence for each PATH without a run, `notes` what could \
not be looked at. Each run has `name`, `path`, `format` (`telemetry` for ours), `id`, `status` (`running`, `finished`, \
`failed`, `stopped`, `starting`, `stalled`, `lost`, `no end` or `unreadable`), `why`, `step`, `loss`, `loss_metric`, \
`started`, `last_sign`, `age_s`, `project`, `tags`, `deleted`, `problem`, `label` (which no other run of the list \
has) and, with `--size`, `bytes`, and each of `--columns` under its name. With `--formats`, `{"formats": […]}`: \
each has `format` (its name for `--format`), \
`title`, `files`, `needs` (a package, or `null`) and `ready`."""

_FILTER_HELP: Final = (
    "only runs for which every term holds, as in the dashboard: NAME>NUMBER (also >=, <, <=, =, !=) for a setting such "
    "as lr, a metric, best:METRIC, step, loss or duration; NAME:TEXT for a part of a text, such as tag:X, status:X, "
    "project:X, format:X; started>2d for the last two days, started:yesterday; any other word is a part of the name, "
    "or a glob; or one formula instead, such as '= best(val_loss) < 0.5'"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folders, and which runs to list in which order."""
    add_paths_argument(parser, "folders of runs, runs, or files of other tools; - reads paths from stdin")
    parser.add_argument(
        "--format", metavar="FORMAT", choices=[OURS, *names_of()], help="only runs in this format"
    )
    parser.add_argument("--filter", metavar="TERMS", type=_filter, default="", help=_FILTER_HELP)
    parser.add_argument(
        "--sort",
        metavar="NAME",
        default="age",
        help="order: age, started, duration and progress (the newest or largest first), name, status, format, step, "
        "loss, a metric or a setting (the smallest first), best:METRIC (the best first) (default: age)",
    )
    parser.add_argument(
        "--columns",
        metavar="NAME,…",
        action="extend",
        type=_column,
        default=[],
        help="further columns: settings, metrics, best:METRIC, or one formula such as '= best(val_loss) / step'; "
        "can be given again",
    )
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    parser.add_argument("--limit", metavar="N", type=whole(), help="only the first N")
    parser.add_argument("--size", action="store_true", help="also how much room each takes on the disk")
    parser.add_argument("--deleted", action="store_true", help="also runs in the trash")
    parser.add_argument(
        "--formats", action="store_true", help="list the formats of other tools that can be read here instead"
    )
    add_json_argument(parser)
    parser.epilog = (
        "Runs of other tools are read where they are; --formats lists which. Nothing is changed. "
        "Exit code: 0; 1 if a run cannot be read; 2 if there is no run."
    )


def run(args: argparse.Namespace) -> int:
    """Print the runs; return 1 if one cannot be read, 2 if there are none."""
    if args.formats:
        return _print_formats(as_json=args.json)
    paths = args.paths
    if paths == [Path("-")]:
        paths = [Path(line.rstrip("\n")) for line in sys.stdin if line.strip()]
    query = RunQuery(text=args.filter, sort=f"{'-' if args.reverse else ''}{args.sort}")
    try:
        with Progress() as progress:
            found = list_runs(paths, query, only=args.format, deleted=args.deleted, on_run=progress.show)
    except QueryError as error:
        raise SystemExit(refuse(f"--filter {args.filter!r}: {error}")) from error
    except ValueError as error:
        return refuse(f"--sort: {error}")
    runs = found.runs
    if any(value_of(run.card, name) is None for run in runs for name in args.columns):
        # A metric that run.json does not have.
        runs = [replace(run, card=with_last_values(run.card)) for run in runs]
    unknown = unknown_among(args.columns, [run.card for run in runs]) if runs else None
    if unknown is not None:
        return refuse(f"--columns: {unknown}")
    runs = runs[: args.limit]
    if args.json:
        sizes = [{"bytes": size_of(run.path)} if args.size else {} for run in runs]
        listed = [
            {**as_json(run), **size, **{name: value_of(run.card, name) for name in args.columns}}
            for run, size in zip(runs, sizes, strict=True)
        ]
        print_json({"runs": listed, "notes": found.notes, "missing": found.missing})
    else:
        _print(runs, found, args)
    for reason in found.missing:
        refuse(reason)
    if not found.total:
        return 2
    return 1 if any(run.card.status.name == UNREADABLE for run in runs) else 0


def _print_formats(*, as_json: bool) -> int:
    rows = [
        {
            "format": entry.name,
            "title": entry.title,
            "files": entry.files,
            "needs": entry.needs or None,
            "ready": not entry.needs or find_spec(entry.needs.split()[0]) is not None,
        }
        for entry in formats()
    ]
    if as_json:
        print_json({"formats": rows})
        return 0
    for row in rows:
        missing = "" if row["ready"] else f"; to read it: {install_command(str(row['needs']).split()[0])}"
        print(f"{row['format']:<15}  {row['title']} ({row['files']}){missing}")
    return 0


def _print(runs: list[ListedRun], found: RunList, args: argparse.Namespace) -> None:
    if runs:
        columns, cells = zip(*columns_of(runs, (*args.columns, args.sort), with_size=args.size), strict=True)
        print_table(columns, [*zip(*cells, strict=True)])
    elif found.total:
        print(f"none of {found.total} runs fits the filter")
    for run in runs:
        if run.card.problem is not None:
            print(printable(f"{run.path}: {run.card.problem}"))
    for note in found.notes:
        print(printable(note))


def _column(text: str) -> list[str]:
    problem = formula_problem(text, ()) if is_formula(text) else None
    if problem is not None:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}")
    return [text] if is_formula(text) else [name.strip() for name in text.split(",") if name.strip()]


def _filter(text: str) -> str:
    try:
        parse("" if is_formula(text.strip()) else text)
    except QueryError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    return text
