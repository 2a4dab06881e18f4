"""`telemetry compare`: runs side by side: what differs in their settings, and their last and best values."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import LOGS, CommandError, printable, refuse
from toolkit.telemetry.cli.run_list import (
    ListedRun,
    age_of,
    as_json,
    label_runs,
    list_runs,
    listed_runs,
    run_at,
    say_if_cut,
    source_for,
)
from toolkit.telemetry.cli.terminal import (
    Cell,
    Column,
    Progress,
    add_json_argument,
    age_text,
    number_text,
    print_json,
    print_table,
    shortened,
    terminal_width,
)
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.importers.source import NO_STEP, SYSTEM, RunSource
from toolkit.telemetry.importers.source import Column as Points
from toolkit.telemetry.importers.summary import number, read_counted
from toolkit.telemetry.runfolder.listed_run import loss_name
from toolkit.telemetry.runfolder.metrics import Direction, metric_direction
from toolkit.telemetry.runfolder.records import SPREAD
from toolkit.telemetry.runs.settings import setting_text
from toolkit.telemetry.runs.store import RunCard

JSON_FORM: Final = """\
an object with `runs`, `config` and `metrics`. Each of `runs` is as in `ls --json`. `config` has an object for each \
setting: `name`, `values` (one for each run, `null` if it has none) and `same`. `metrics` has an object for each \
metric: `name`, `goal` (`min`, `max`, or `null` if neither is better), `same`, and for each run in `last`, `best` and \
`best_step` a value or `null`."""

_MOST: Final = 50
_LONGEST: Final = 40
_MOST_NAMED: Final = 5
_NARROWEST: Final = 14
_OF_TIME: Final = ("time/", "ledger/")
"""Where the time of a step went: shown with --all, or if it is asked for with --metrics."""
_FOLDED: Final = ("steps_folded", "nan_inf_detected")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the runs and what to compare."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        type=Path,
        help=f"runs, ours or other tools', or one folder of runs (default: the newest two in {LOGS})",
    )
    parser.add_argument("--metrics", metavar="GLOB", help="only metrics whose names match, such as '*loss*'")
    parser.add_argument(
        "--all",
        action="store_true",
        help="also settings that are the same in all runs, and where the time of the last step went",
    )
    add_json_argument(parser)
    parser.epilog = (
        "The best value is shown for metrics whose names say what is better: a loss or an error is best where it is "
        "smallest, an accuracy or a reward where it is largest. `telemetry report RUN …` has it as Markdown, with "
        "curves as HTML. "
        "Exit code: 0; 2 if fewer than two runs can be read."
    )


@dataclass(slots=True)
class _Values:
    """The last and best value of a metric in one run."""

    goal: Direction | None
    last: float = math.nan
    best: float | None = None
    """The best value that is a number; None if neither direction is better."""
    best_step: int | None = None

    def add(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """Add points."""
        self.last = values[-1]
        if self.goal is None:
            return
        sign = -1 if self.goal == "max" else 1
        known = (
            (sign * value, step) for step, value in zip(steps, values, strict=True) if math.isfinite(value)
        )
        best, step = min(known, key=lambda point: point[0], default=(math.inf, NO_STEP))
        if best < (math.inf if self.best is None else sign * self.best):
            self.best, self.best_step = sign * best, None if step == NO_STEP else step


def run(args: argparse.Namespace) -> int:
    """Print the comparison; return 2 if there are not two runs."""
    chosen = _chosen(args.runs)
    if len(chosen) < 2:
        place = chosen[0].path.absolute().parent
        others = [run.called for run in list_runs([place]).runs if run.path != chosen[0].path][:_MOST_NAMED]
        such = f", such as {', '.join(others)}" if others else ""
        return refuse(f"there is one run to compare ({chosen[0].path}); name another{such}")
    chosen = label_runs(chosen)
    say_if_cut(chosen)
    guard = Guard()
    found_metrics = []
    with Progress() as progress:
        for at, run in enumerate(chosen):
            progress.show(run.called, at, len(chosen))
            metrics = guard.call("reading", _metrics_of, source_for(run))
            if metrics is None:
                raise CommandError(f"{run.path} could not be read: {', '.join(guard.counts)}")
            found_metrics.append(metrics)
    cards = [run.card for run in chosen]
    config = [row for row in _config([card.config for card in cards]) if args.all or not row["same"]]
    metrics_rows = [
        row
        for row in _metrics(found_metrics)
        if (
            args.all or not row["name"].startswith(_OF_TIME)
            if args.metrics is None
            else fnmatchcase(row["name"], args.metrics)
        )
    ]
    if args.json:
        print_json({"runs": [as_json(run) for run in chosen], "config": config, "metrics": metrics_rows})
    else:
        _print_blocks([run.called for run in chosen], _rows(cards, config, metrics_rows))
    return 0


def _chosen(paths: Sequence[Path]) -> list[ListedRun]:
    """Return the runs to compare. Raises OSError if there are none."""
    if len(paths) > 1:
        return [*map(run_at, paths[:_MOST])]
    # The newest is the last.
    runs = listed_runs(paths or [LOGS])[::-1]
    return runs[:_MOST] if paths else runs[-2:]


def _metrics_of(source: RunSource) -> dict[str, _Values]:
    def take(found: dict[str, _Values], name: str, column: Points) -> None:
        if len(column) and column.kind != SYSTEM:
            found.setdefault(name, _Values(metric_direction(name))).add(column.steps, column.values)

    found = read_counted(source, dict[str, _Values], take)
    return {
        name: values
        for name, values in found.items()
        if name not in _FOLDED and not (name.endswith(SPREAD) and name.rpartition("_")[0] in found)
    }


# ------------------------------------------------------------ rows


def _config(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for name in dict.fromkeys(name for config in configs for name in config):
        values = [config.get(name) for config in configs]
        # A run without any settings, such as an event file, does not differ in every one.
        known = [value for config, value in zip(configs, values, strict=True) if config]
        rows.append({"name": name, "values": values, "same": all(value == known[0] for value in known)})
    return rows


def _metrics(found: Sequence[Mapping[str, _Values]]) -> list[dict[str, Any]]:
    names = list(dict.fromkeys(name for metrics in found for name in metrics))
    loss = loss_name(names)
    rows = []
    for name in sorted(names, key=lambda name: name != loss):
        goal = metric_direction(name)
        values = [metrics.get(name) for metrics in found]
        last = [None if value is None else number(value.last) for value in values]
        best = [None if value is None else value.best for value in values]
        rows.append(
            {
                "name": name,
                "goal": goal,
                "same": all(value == last[0] for value in last) and all(value == best[0] for value in best),
                "last": last,
                "best": best,
                "best_step": [None if value is None else value.best_step for value in values],
            }
        )
    return rows


_Row = tuple[str, list[str]]


def _rows(
    cards: Sequence[RunCard], config: Sequence[dict[str, Any]], metrics: Sequence[dict[str, Any]]
) -> list[_Row]:
    now = time.time()
    rows: list[_Row] = [
        ("status", [card.status.name for card in cards]),
        ("step", ["" if card.step is None else f"{card.step:,}" for card in cards]),
        ("age", [age_text(age_of(card, now)) for card in cards]),
    ]
    rows += [
        (row["name"], ["" if value is None else setting_text(value) for value in row["values"]])
        for row in config
    ]
    for row in metrics:
        last = [value if isinstance(value, str) else number_text(value) for value in row["last"]]
        rows.append((row["name"], last))
        if any(
            best is not None and best != last for best, last in zip(row["best"], row["last"], strict=True)
        ):
            best = [
                "" if value is None else f"{value:.5g}" + ("" if step is None else f" at {step:,}")
                for value, step in zip(row["best"], row["best_step"], strict=True)
            ]
            rows.append((f"  best ({row['goal']})", best))
    return rows


# ------------------------------------------------------------ forms


def _print_blocks(names: Sequence[str], rows: Sequence[_Row]) -> None:
    """Print the table; runs that do not fit next to each other follow below, with the names of the rows again."""
    width = terminal_width()
    # The end of a joined name says more than its beginning.
    names_of_rows = [name for name, _ in rows]
    longest = min(_LONGEST, max(_NARROWEST, width * 2 // 5))
    heads = [name if len(name) <= longest else f"…{name[-longest + 1 :]}" for name in names_of_rows]
    left = max(map(len, heads))
    # Two runs side by side always fit.
    longest = min(_LONGEST, max(_NARROWEST, (width - left) // 2 - 2))
    cells = [[shortened(text, longest) for text in values] for _, values in rows]
    at = 0
    while at < len(names):
        until, used = at, left
        while until < len(names):
            column = max([len(shortened(names[until], longest)), *(len(row[until]) for row in cells)])
            if until > at and used + 2 + column > width:
                break
            used += 2 + column
            until += 1
        columns = [
            Column(""),
            *(Column(shortened(printable(name), longest), right=True) for name in names[at:until]),
        ]
        table: list[list[Cell]] = [
            [(head, "dim" if head.startswith("  best") else ""), *row[at:until]]
            for head, row in zip(heads, cells, strict=True)
        ]
        if at:
            print()
        print_table(columns, table)
        at = until
