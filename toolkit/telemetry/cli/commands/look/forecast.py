"""`telemetry forecast`: where the loss of a run will end, when the run ends, and what runs out before."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from toolkit.telemetry.cli.chosen_run import add_run_argument, printable, refuse
from toolkit.telemetry.cli.report_content import UnreadableRunError, open_run
from toolkit.telemetry.cli.run_list import run_at
from toolkit.telemetry.cli.terminal import Column, add_json_argument, print_json, print_table

if TYPE_CHECKING:
    from toolkit.telemetry.forecasts.curve import Forecast, NoForecast

CANNOT_BE_FORECAST: Final = 3
_LIMIT_S: Final = 86_400.0

JSON_FORM: Final = """\
an object with `run`, `path`, `losses` (of each metric `metric`, `low`, `middle` and `high` of the 90 % interval, \
`at_step`, `from_step`, `records`, `basis`, or `metric` and `why` it cannot be forecast), `ends` (`low`, `middle`, \
`high` as Unix times, or `null`), `limits` (`what`, `when`, `step`) and `passing` (`run`, `name`, `metric`, `value`, \
`step`, `is_ahead`, `chance`, or `null`)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and the metric."""
    add_run_argument(parser)
    parser.add_argument("--metric", metavar="NAME", help="forecast this loss or error instead")
    add_json_argument(parser)
    parser.epilog = (
        "RUN may also be a run of another tool. Every number has a 90 % interval. Exit code: 0; 1 if memory, the disk "
        "or the time limit of the job may run out before the end; 3 if no loss can be forecast; 2 if there is no run."
    )


def run(args: argparse.Namespace) -> int:
    """Print the forecasts; return 1 if something runs out, 3 if no loss can be forecast, 2 if there is no run."""
    chosen = run_at(args.run)
    if isinstance(chosen, str):
        return refuse(chosen)
    try:
        store, key = open_run(chosen, "a forecast")
    except UnreadableRunError as error:
        return refuse(str(error))
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
        columns = [Column(head_of(store.card(key)).lower()), Column(""), Column("because")]
        print_table(columns, [[printable(cell) for cell in line] for line in lines])
    return 1 if found.limits else 0 if found.losses else CANNOT_BE_FORECAST


def _loss(one: Forecast | NoForecast, metric: str) -> dict[str, Any]:
    if not hasattr(one, "metric"):
        return {"metric": metric, "why": one.why}
    names = ("metric", "low", "middle", "high", "at_step", "from_step", "records", "basis")
    return {name: getattr(one, name) for name in names}
