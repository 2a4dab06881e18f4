"""`telemetry status`: whether a run is running, how far it is and how fast."""

from __future__ import annotations

import argparse
import time
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import add_run_argument, printable
from toolkit.telemetry.cli.run_list import run_at, time_left
from toolkit.telemetry.cli.terminal import add_json_argument, age_text, number_text, print_json
from toolkit.telemetry.runfolder.status import FAILED, LOST, STALLED
from toolkit.telemetry.runfolder.untrusted import finite_in
from toolkit.telemetry.runs.store import UNREADABLE, RunCard

JSON_FORM: Final = """\
an object with `run`, `path`, `status`, `why`, `step`, `max_steps`, `loss`, `loss_metric`, `sec_per_step`, `eta_s`, \
`findings` (open warnings and critical ones) and `last_sign`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run."""
    add_run_argument(parser)
    add_json_argument(parser)
    parser.epilog = (
        "RUN may also be a run of another tool. Exit code: 0; 1 if the run failed, stalled, was lost or cannot be "
        "read; 2 if there is no run."
    )


def run(args: argparse.Namespace) -> int:
    """Print the status; return 1 if the run is not well, 2 if there is none."""
    found = run_at(args.run)
    about = {"run": found.called, "path": str(found.path), **_about(found.card)}
    if args.json:
        print_json(about)
    else:
        print(printable(_line(about)))
        if about["why"] not in ("", about["status"]):
            print(printable(about["why"]))
    return 1 if about["status"] in (FAILED, STALLED, LOST, UNREADABLE) else 0


def _about(card: RunCard) -> dict[str, Any]:
    speed = finite_in(card.summary.get("sec_per_step"))
    return {
        "status": card.status.name,
        "why": card.problem or card.status.why,
        "step": card.step,
        "max_steps": card.max_steps,
        "loss": finite_in(card.loss),
        "loss_metric": card.loss_metric,
        "sec_per_step": speed,
        "eta_s": time_left(card),
        "findings": sum(card.open_findings),
        "last_sign": card.last_sign,
    }


def _line(about: dict[str, Any]) -> str:
    parts = [f"{about['run']}: {about['status']}"]
    if about["step"] is not None:
        parts.append(
            f"step {about['step']:,}" + (f" of {about['max_steps']:,}" if about["max_steps"] else "")
        )
    if about["loss"] is not None:
        parts.append(f"{about['loss_metric']} {number_text(about['loss'])}")
    if about["sec_per_step"]:
        parts.append(f"{number_text(about['sec_per_step'])} s/step")
    if about["eta_s"] is not None:
        parts.append(f"{age_text(about['eta_s'])} left")
    if about["last_sign"]:
        parts.append(f"last sign {age_text(time.time() - about['last_sign'])} ago")
    if about["findings"]:
        parts.append(f"findings: {about['findings']}, which `telemetry doctor` explains")
    return ", ".join(parts)
