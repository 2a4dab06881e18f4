"""`telemetry ls`: list runs, ours and those of other tools."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from toolkit.cli.argument_types import whole
from toolkit.cli.chosen_run import LOGS, printable, refuse, size_of
from toolkit.cli.run_filter import HELP, query_of, selected, sorted_runs, unknown_order, value_of
from toolkit.cli.run_list import NO_END, UNREADABLE, ListedRun, RunList, list_runs
from toolkit.cli.terminal import (
    Cell,
    Column,
    Progress,
    add_json_argument,
    age_text,
    number_text,
    print_json,
    print_table,
    size_text,
)
from toolkit.core.run_search import QueryError
from toolkit.importers.detect import names_of
from toolkit.importers.formats.record_file import OURS
from toolkit.runfolder.status import FAILED, FINISHED, LOST, RUNNING, STALLED
from toolkit.runs.settings import setting_text

JSON_FORM: Final = """\
an object with `runs`, `notes` and `missing`. `missing` has a sentence for each PATH without a run, `notes` what could \
not be looked at. Each run has `name`, `path`, `format` (`telemetry` for ours), `id`, `status` (`running`, `finished`, \
`failed`, `stopped`, `stalled`, `lost`, `live`, `no end` or `unreadable`), `why`, `step`, `loss`, `loss_metric`, \
`started`, `last_sign`, `age_s`, `project`, `tags`, `deleted`, `problem`, `label` (which no other run of the list \
has) and, with `--size`, `bytes`."""

_STYLES: Final = {
    RUNNING: "green",
    "live": "green",
    FINISHED: "",
    FAILED: "red",
    LOST: "red",
    STALLED: "yellow",
    UNREADABLE: "red",
    NO_END: "dim",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folders, and which runs to list in which order."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        type=Path,
        help=f"folders of runs, runs, or files of other tools (default: {LOGS}); - reads paths from stdin",
    )
    parser.add_argument(
        "--format", metavar="FORMAT", choices=[OURS, *names_of()], help="only runs in this format"
    )
    parser.add_argument("--filter", metavar="TERMS", type=_filter, default="", help=HELP)
    parser.add_argument(
        "--sort",
        metavar="NAME",
        default="age",
        help="order: age, name, status, format, step, loss, started, a metric or a setting (default: age)",
    )
    parser.add_argument("--reverse", action="store_true", help="the largest first; with age, the oldest")
    parser.add_argument("--limit", metavar="N", type=whole(), help="only the first N")
    parser.add_argument("--size", action="store_true", help="also how much room each takes on the disk")
    parser.add_argument("--deleted", action="store_true", help="also runs in the trash")
    add_json_argument(parser)
    parser.epilog = (
        "Runs of other tools are read where they are; `telemetry formats` lists which. Nothing is changed. "
        "Exit code: 0; 1 if a run cannot be read; 2 if there is no run."
    )


def run(args: argparse.Namespace) -> int:
    """Print the runs; return 1 if one cannot be read, 2 if there are none."""
    paths = args.paths or [LOGS]
    if paths == [Path("-")]:
        paths = [Path(line.rstrip("\n")) for line in sys.stdin if line.strip()]
    progress = Progress()
    try:
        found = list_runs(
            paths,
            only=args.format,
            deleted=args.deleted,
            on_run=lambda name, done, total: progress.show(name, done, total),
        )
    finally:
        progress.clear()
    now = time.time()
    try:
        runs = selected(found.runs, args.filter, now)
    except QueryError as error:
        raise SystemExit(refuse(f"--filter {args.filter!r}: {error}")) from error
    unknown = unknown_order(found.runs, args.sort, now)
    if unknown is not None:
        return refuse(unknown)
    runs = sorted_runs(runs, args.sort, now, reverse=args.reverse)[: args.limit]
    if args.json:
        sizes = [{"bytes": size_of(run.path)} if args.size else {} for run in runs]
        listed = [{**run.as_json(now), **size} for run, size in zip(runs, sizes, strict=True)]
        print_json({"runs": listed, "notes": found.notes, "missing": found.missing})
    else:
        _print(runs, found, now, args)
    for reason in found.missing:
        refuse(reason)
    if not found.runs:
        return 2
    return 1 if any(run.status == UNREADABLE for run in runs) else 0


def _print(runs: list[ListedRun], found: RunList, now: float, args: argparse.Namespace) -> None:
    if runs:
        columns = _columns(runs, now, args)
        print_table([column for column, _ in columns], [[cell(run) for _, cell in columns] for run in runs])
    elif found.runs:
        print(f"none of {len(found.runs)} runs fits the filter")
    for run in runs:
        if run.problem is not None:
            print(printable(f"{run.path}: {run.problem}"))
    for note in found.notes:
        print(printable(note))


def _columns(
    runs: list[ListedRun], now: float, args: argparse.Namespace
) -> list[tuple[Column, Callable[[ListedRun], Cell]]]:
    """Return the columns: those that tell namesakes apart only where there are some, and the one that is sorted by."""
    labels = [run.label for run in runs if run.label is not None]
    columns: list[tuple[Column, Callable[[ListedRun], Cell]]] = [(Column("run"), lambda run: run.name)]
    if any(label.folder for label in labels):
        columns.append((Column("folder"), lambda run: "" if run.label is None else run.label.folder))
    if any(label.differs for label in labels):
        columns.append((Column("what differs"), lambda run: "" if run.label is None else run.label.differs))
    if any(run.format != OURS for run in runs):
        columns.append((Column("format", keep=True), lambda run: run.format))
    columns += [
        (Column("status", keep=True), _status),
        (Column("step", right=True, keep=True), lambda run: "" if run.step is None else f"{run.step:,}"),
        (Column("loss", right=True, keep=True), lambda run: number_text(run.loss)),
    ]
    if args.sort not in (*(column.title for column, _ in columns), "name", "format", "age"):
        columns.append(
            (Column(args.sort, right=True), lambda run: _text(value_of(run, args.sort, now), args.sort))
        )
    if args.size:
        columns.append((Column("size", right=True, keep=True), lambda run: size_text(size_of(run.path))))
    return [*columns, (Column("age", right=True, keep=True), lambda run: age_text(run.age(now)))]


def _status(run: ListedRun) -> Cell:
    return f"{run.status}, deleted" if run.deleted else run.status, _STYLES.get(run.status, "")


def _text(value: Any, name: str) -> str:
    if name in ("started", "updated") and value is not None:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
    return age_text(value) if name == "duration" else setting_text(value) if value is not None else ""


def _filter(text: str) -> str:
    try:
        query_of(text, time.time())
    except QueryError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    return text
