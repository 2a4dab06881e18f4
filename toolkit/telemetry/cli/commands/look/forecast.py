"""`telemetry forecast`: where the loss of a run will end, when, what runs out; which runs of a sweep can be stopped."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from toolkit.telemetry.cli.argument_types import add_metric_arguments, metric_and_goal, refuse_misplaced
from toolkit.telemetry.cli.chosen_run import add_run_argument, printable, refuse
from toolkit.telemetry.cli.report_content import open_run, require_columns
from toolkit.telemetry.cli.run_list import run_at, say_if_cut
from toolkit.telemetry.cli.terminal import Column, add_json_argument, print_json, print_table

if TYPE_CHECKING:
    from toolkit.telemetry.forecasts.curve import Forecast, NoForecast

NONE: Final = 3
"""Exit code: no loss can be forecast, or no run can be stopped."""
_LIMIT_S: Final = 86_400.0
_RISK: Final = 2.0

JSON_FORM: Final = """\
an object with `run`, `path`, `losses` (of each metric `metric`, `low`, `middle` and `high` of the 90 % interval, \
`at_step`, `from_step`, `records`, `basis`, or `metric` and `why` it cannot be forecast), `ends` (`low`, `middle`, \
`high` as Unix times, or `null`), `limits` (`what`, `when`, `step`) and `passing` (`run`, `name`, `metric`, `value`, \
`step`, `is_ahead`, `chance`, or `null`). With `--stopping`, an object with `metric`, `goal` (`min` or `max`), \
`sentence`, `risk`, `left_out` (live runs that were not judged) and `runs`: the live ones, each with `key`, `name`, \
`can_stop`, `why`, `risk`, and what stopping it saves: `steps`, `seconds` and `kwh`, or `null` if not known."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run, or the sweep, and the metric."""
    add_run_argument(parser)
    parser.add_argument(
        "--stopping",
        action="store_true",
        help="say of the live runs in a folder which can be stopped, what that saves, and the risk",
    )
    add_metric_arguments(
        parser, "forecast this loss or error instead; with --stopping, what runs are compared by"
    )
    parser.add_argument(
        "--project", metavar="NAME", help="with --stopping: only its runs (default: that with the most runs)"
    )
    parser.add_argument(
        "--risk",
        metavar="PERCENT",
        type=float,
        help=f"with --stopping: how likely one of them may become the best, 2 to 50 (default: {_RISK:g})",
    )
    add_json_argument(parser)
    parser.epilog = (
        "RUN may also be a run of another tool. Every number has a 90 % interval. Exit code: 0; 1 if memory, the disk "
        "or the time limit of the job may run out before the end; 3 if no loss can be forecast; 2 if there is no run. "
        "--stopping stops nothing, `telemetry ask RUN --stop` does; exit code: 0 if a run can be stopped; 3 if none; "
        "2 if there are no runs to compare."
    )


def run(args: argparse.Namespace) -> int:
    """Print the forecasts; return 1 if something runs out, 3 if no loss can be forecast, 2 if there is no run."""
    if args.stopping:
        return _print_stopping(args)
    refuse_misplaced(args, ("goal", "project", "risk"), "--stopping")
    chosen = run_at(args.run)
    say_if_cut([chosen])
    store, key = open_run(chosen, "a forecast")
    from toolkit.telemetry.forecasts.run import forecast_run
    from toolkit.telemetry.forecasts.words import head_of, said_of

    store.refresh(key, wait_s=_LIMIT_S)
    store.examine(key, wait_s=_LIMIT_S)
    found = forecast_run(store, key, metric=args.metric)
    if args.json:
        losses = ((args.metric or "train_loss", found.train), ("val_loss", found.val))
        rest = {
            "ends": found.ends and asdict(found.ends),
            "limits": [asdict(limit) for limit in found.limits],
            "passing": found.passing and asdict(found.passing),
        }
        said = [_loss(one, name) for name, one in losses if one is not None]
        print_json({"run": chosen.called, "path": str(chosen.path), "losses": said, **rest})
    else:
        lines = said_of(found, time.time())
        if args.metric:
            lines[0] = lines[0]._replace(what=f"Final {args.metric}")
        print_table([Column(head_of(store.card(key)).lower()), Column(""), Column("because")], lines)
    return 1 if found.limits else 0 if found.losses else NONE


def _loss(one: Forecast | NoForecast, metric: str) -> dict[str, Any]:
    if not hasattr(one, "metric"):
        return {"metric": metric, "why": one.why}
    names = ("metric", "low", "middle", "high", "at_step", "from_step", "records", "basis")
    return {name: getattr(one, name) for name in names}


def _print_stopping(args: argparse.Namespace) -> int:
    """Print which runs of a folder can be stopped; return 3 if none can."""
    risk = _RISK if args.risk is None else args.risk
    if not 2.0 <= risk <= 50.0:
        return refuse(f"--risk {risk:g} is out of range: 2 to 50")
    require_columns("a comparison of runs")
    from toolkit.telemetry.forecasts.sweep import saved_text, stopping_of, stopping_text
    from toolkit.telemetry.runs.sources.local_store import LocalStore
    from toolkit.telemetry.runs.store import RunQuery, labelled
    from toolkit.telemetry.runs.sweep.runs import of_one_task

    if not args.run.is_dir():
        return refuse(f"there is no folder {args.run}")
    store = LocalStore([args.run], cache_dir=None, read_only=True)
    cards = store.list_runs(RunQuery(project=args.project, archived=False)).cards
    chosen = labelled(cards if args.project else of_one_task(cards)[0])
    if not chosen:
        return refuse(f"{args.run} has no runs" + (f" of {args.project}" if args.project else ""))
    metric, goal = metric_and_goal(args, [sorted(card.evaluations) for card in chosen.values()])
    found = stopping_of(
        store, chosen.values(), metric=metric, direction=goal, risk=risk / 100, wait_s=_LIMIT_S
    )
    text = stopping_text(found)
    if args.json:
        rest = asdict(found) | {"risk": found.risk}
        print_json({"metric": metric, "goal": goal, "sentence": text, **rest})
        return 0 if found.stoppable else NONE
    print(printable(text))
    if found.runs:
        print()
        print_table(
            [Column("run"), Column("can be stopped"), Column("saves"), Column("why")],
            [
                (run.name, *(("yes", saved_text(run)) if run.can_stop else ("no", "")), run.why)
                for run in found.runs
            ],
        )
    return 0 if found.stoppable else NONE
