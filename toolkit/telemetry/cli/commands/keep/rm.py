"""`telemetry rm`: move runs to the trash."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import refuse, runs_given
from toolkit.telemetry.cli.leftovers import delete_or_list, is_live, run_to_trash
from toolkit.telemetry.cli.run_list import list_runs
from toolkit.telemetry.cli.terminal import add_json_argument

JSON_FORM: Final = """\
an object with `found`, `deleted` (whether `--yes` was given), `bytes` (of all runs) and `failed`. Each of `found` has \
`kind` (`run`), `path`, `bytes`, `changed` and `why`; each of `failed` has `path` and `reason`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the runs."""
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run folders, or names of runs")
    parser.add_argument("--yes", action="store_true", help="move them; without it nothing changes")
    add_json_argument(parser)
    parser.epilog = (
        "The Settings of the dashboard restore a run from the trash; `telemetry gc --yes` empties it. "
        "Runs that are written now and runs of other tools are refused. "
        "Exit code: 0; 1 if a run could not be moved; 2 if a RUN is not a run of ours."
    )


def run(args: argparse.Namespace) -> int:
    """Say what the runs hold, and move them to the trash if asked to."""
    found = []
    for path in dict.fromkeys(args.runs):
        if not os.path.lexists(path) and runs_given([path]).namesakes:
            return refuse(f"which of them is to go? Name its folder instead of {path}")
        listed = list_runs([path])
        if not listed.runs:
            return refuse("; ".join([*listed.missing, *listed.notes]))
        run, *others = listed.runs
        is_other_folder = os.path.lexists(path) and run.path != path.absolute()
        if others or run.source is not None or is_other_folder:
            names = ", ".join(run.called for run in listed.runs[:5])
            return refuse(f"{path} is no run of ours, which `telemetry rm` could move; it has {names}")
        if is_live(run.path, run.card):
            return refuse(f"{run.path} is being written now: stop it first")
        found.append(run_to_trash(run.path, run.card))
    return delete_or_list(found, args)
