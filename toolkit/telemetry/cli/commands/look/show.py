"""`telemetry show`: show a run, ours or another tool's: series, last steps, errors, what its model answered."""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.argument_types import refuse_misplaced, whole
from toolkit.telemetry.cli.chosen_run import add_format_argument, add_run_argument, printable
from toolkit.telemetry.cli.run_list import RunList, as_given, found_at, last_records, source_for, status_of
from toolkit.telemetry.cli.show import completions, errors
from toolkit.telemetry.cli.terminal import Column, add_json_argument, number_text, print_table
from toolkit.telemetry.importers.summary import summaries
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.listed_run import known_values, last_values
from toolkit.telemetry.runfolder.metrics import NOT_RESULTS, metrics_of
from toolkit.telemetry.runfolder.reader import blocks_of
from toolkit.telemetry.runfolder.records import STEP, is_spread
from toolkit.telemetry.runs.store import RunCard

_FIRST: Final = (
    *("train_loss", "loss", "lr", "grad_norm", "samples_per_sec", "sec_per_step", "cpu_mem_rss_mb"),
)
"""Columns that most runs have; those of the script follow."""
_NOT_LOGGED: Final = frozenset({"epoch", "max_steps", "first_step", "steps_folded"})
_EVENT: Final = re.compile(rb'^\{"event": ?"([A-Za-z0-9_./-]{1,60})"', re.MULTILINE)
_WIDEST: Final = 16
_MOST_OTHERS: Final = 30
_MOST_EVENTS: Final = 20
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
        default=5,
        help="show the last N steps, or the newest N completions (default: 5)",
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
    """Print the run's folder, its last rows and how to open it, or what was asked for; return 2 if there is nothing."""
    if not args.completions:
        refuse_misplaced(args, ("search", "full"), "--completions")
    if args.errors or args.completions:
        refuse_misplaced(args, ("metrics", "format"), "the series of a run")
        return errors.run(args) if args.errors else completions.run(args)
    found = found_at(args.run, args.format, deleted=True)
    if found.runs[0].source is not None or args.json or args.metrics:
        return _show_series(args, found)
    return _show_steps(found.runs[0].card, as_given(found.runs[0].path, args.run), args.rows)


def _show_series(args: argparse.Namespace, found: RunList) -> int:
    """Print the series of our run, or of the runs of other tools."""
    notes = [*found.notes]
    found_runs, problems = summaries([source_for(run) for run in found.runs], time.time())
    masker = Masker()
    for run in found_runs:
        run.update(masker.mask({name: run[name] for name in ("name", "group", "config", "tags", "notes")}))
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
    titles = ("points", "steps", "first", "last", "min", "max", "not finite")
    if series:
        print_table(
            [Column("series"), *(Column(title, right=True, keep=True) for title in titles)],
            [_row(name, found) for name, found in series.items()],
        )
    print()


def _row(name: str, series: dict[str, Any]) -> list[str]:
    first, last = series["first"], series["last"]
    steps = "" if first["step"] is None else f"{first['step']}..{last['step']}"
    numbers = (first["value"], last["value"], series["min"], series["max"])
    odd = sum(series[kind] for kind in ("nan", "inf", "neg_inf"))
    cells = [value if isinstance(value, str) else number_text(value) for value in numbers]
    return [name[:_LONGEST], f"{series['count']:,}", steps, *cells, f"{odd:,}" if odd else ""]


def _show_steps(card: RunCard, folder: Path, rows: int) -> int:
    """Print the last steps of our run with every metric of the script, from its records."""
    log = folder / METRICS_JSONL
    counts = _count_of_events(log)
    steps, _ = last_records(log, rows, lambda record: record.get("event") == STEP)
    last = last_values(log) | known_values(card.summary, card.evaluations)
    print(printable(f"{folder}: {status_of(folder)}, {_counted(counts)}"))
    print(f"{printable(card.problem)}\n" if card.problem else "")
    metrics = [dict(metrics_of(step)) for step in steps]
    names = dict.fromkeys(name for found in metrics for name in found)
    own = [name for name in names if not name.startswith(NOT_RESULTS) and not is_spread(name, names)]
    shown = [*(name for name in _FIRST if name in own), *(name for name in own if name not in _FIRST)][
        :_WIDEST
    ]
    print_table(
        [Column("step", right=True, keep=True), *(Column(name, right=True) for name in shown)],
        [
            [str(step.get("global_step", "")), *(number_text(found.get(name)) for name in shown)]
            for step, found in zip(steps, metrics, strict=True)
        ],
    )
    others = {
        name: value
        for name, value in last.items()
        if name not in shown and _is_logged(name) and not is_spread(name, last)
    }
    if others:
        listed = [f"{name}={number_text(value)}" for name, value in others.items()]
        more = f" and {len(listed) - _MOST_OTHERS} more" if len(listed) > _MOST_OTHERS else ""
        print()
        print(printable(f"Other last values: {', '.join(listed[:_MOST_OTHERS])}{more}"))
    print(f"\nTo open it yourself:\n\n{_recipe(folder)}")
    return 0


def _count_of_events(log: Path) -> Counter[str]:
    """Return how many records of each kind a file has, without parsing them."""
    counts: Counter[bytes] = Counter()
    for block in blocks_of(log):
        counts.update(_EVENT.findall(block.data))
    return Counter({kind.decode(): count for kind, count in counts.items()})


def _counted(counts: Counter[str]) -> str:
    shown = [f"{count:,} {event}" for event, count in counts.most_common(_MOST_EVENTS)]
    more = len(counts) - len(shown)
    kinds = ", ".join([*shown, *([f"{more} other kinds"] if more else [])])
    return f"{counts.total():,} records ({kinds})" if counts else "no records"


def _is_logged(name: str) -> bool:
    """Return whether a script logged a metric; others are measured by us, or say how the run is configured."""
    return not name.startswith((*NOT_RESULTS, "findings_")) and name not in _NOT_LOGGED


def _recipe(folder: Path) -> str:
    # Escaped if the path needs it in Python source, or contains terminal control characters.
    path = folder.as_posix()
    quoted = f'"{path}"' if path.isprintable() and not {'"', "\\"} & set(path) else ascii(path)
    return f"    from toolkit.telemetry import read_run\n    steps = read_run({quoted}).frame()  # needs pandas\n"
