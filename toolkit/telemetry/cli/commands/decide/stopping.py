"""`telemetry stopping`: which live runs of a sweep can be stopped, what that saves, and the risk."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.argument_types import add_metric_arguments, metric_and_goal
from toolkit.telemetry.cli.chosen_run import LOGS, printable, refuse
from toolkit.telemetry.cli.report_content import UnreadableRunError, require_columns
from toolkit.telemetry.cli.terminal import Column, add_json_argument, print_json, print_table

NONE: Final = 3
_LIMIT_S: Final = 86_400.0

JSON_FORM: Final = """\
an object with `metric`, `goal` (`min` or `max`), `sentence`, `risk`, `left_out` (live runs that were not judged) and \
`runs`: the live ones, each with `key`, `name`, `can_stop`, `why`, `risk`, and what stopping it saves: `steps`, \
`seconds` and `kwh`, or `null` where that is not known."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sweep and how its runs are compared."""
    folder = "the folder with the runs of a sweep (default: %(default)s)"
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=Path, default=LOGS, help=folder)
    project = "only its runs (default: the project with the most runs)"
    parser.add_argument("--project", metavar="NAME", help=project)
    add_metric_arguments(parser)
    risk = "how likely one of them may become the best, 2 to 50 (default: %(default)g)"
    parser.add_argument("--risk", metavar="PERCENT", type=float, default=2.0, help=risk)
    add_json_argument(parser)
    parser.epilog = (
        "Nothing is stopped: `telemetry ask RUN --stop` does that. Exit code: 0 if a run can be stopped; 3 if none; "
        "2 if there are no runs to compare."
    )


def run(args: argparse.Namespace) -> int:
    """Print which runs can be stopped; return 3 if none can."""
    if not 2.0 <= args.risk <= 50.0:
        return refuse(f"--risk {args.risk:g} is out of range: 2 to 50")
    try:
        require_columns("a comparison of runs")
    except UnreadableRunError as error:
        return refuse(str(error))
    from toolkit.telemetry.forecasts.sweep import saved_text, stopping_of, stopping_text
    from toolkit.telemetry.runs.sources.local_store import LocalStore
    from toolkit.telemetry.runs.store import RunQuery, labelled
    from toolkit.telemetry.runs.sweep.runs import of_one_task

    if not args.folder.is_dir():
        return refuse(f"there is no folder {args.folder}")
    store = LocalStore([args.folder], cache_dir=None, read_only=True)
    cards = store.list_runs(RunQuery(project=args.project, archived=False)).cards
    chosen = labelled(cards if args.project else of_one_task(cards)[0])
    if not chosen:
        return refuse(f"{args.folder} has no runs" + (f" of {args.project}" if args.project else ""))
    compared = metric_and_goal(args, [sorted(card.evaluations) for card in chosen.values()])
    if isinstance(compared, str):
        return refuse(compared)
    metric, goal = compared
    risk = args.risk / 100
    found = stopping_of(store, chosen.values(), metric=metric, direction=goal, risk=risk, wait_s=_LIMIT_S)
    text = stopping_text(found)
    if args.json:
        rest = asdict(found) | {"risk": found.risk}
        print_json({"metric": metric, "goal": goal, "sentence": text, **rest})
        return 0 if found.stoppable else NONE
    print(printable(text))
    if found.runs:
        print()
        rows = [
            (run.name, "yes", saved_text(run), run.why) if run.can_stop else (run.name, "no", "", run.why)
            for run in found.runs
        ]
        columns = [Column("run"), Column("can be stopped"), Column("saves"), Column("why")]
        print_table(columns, [[printable(cell) for cell in row] for row in rows])
    return 0 if found.stoppable else NONE
