"""How long an import takes, and which modules it loads."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import Any

from benchmarks.child import ROOT
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import OURS, TENSORBOARD, TRACKIO, WANDB
from benchmarks.report import Claim, Report

_NAMES = {
    OURS: "toolkit.telemetry.TelemetryLogger",
    TRACKIO: "trackio.init",
    WANDB: "wandb.init",
    TENSORBOARD: "torch.utils.tensorboard.SummaryWriter",
}
"""What a script imports to log; a lazy package shows its cost only when the name is used."""
_HEAVY = ("torch", "numpy", "pandas", "tensorboard", "wandb", "streamlit")


def build(options: Options) -> Report:
    """Import each contender in fresh interpreters, in turns."""
    rounds = 2 if options.quick else 7
    contenders, notes = options.choose(_NAMES)
    answers: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        say(f"import, round {number + 1} of {rounds}")
        for contender in contenders:
            answers[contender.name].append(time_import(_NAMES[contender]))

    figures = {
        name: {
            "ms": statistics.median(answer["ms"] for answer in found),
            "modules": found[0]["modules"],
            "heavy": found[0]["heavy"],
        }
        for name, found in answers.items()
    }
    ours = figures.get(OURS.name)
    claims = []
    if ours:
        claims = [
            Claim(text="importing TelemetryLogger", measured=ours["ms"], limit=90.0, unit=" ms"),
            Claim(text="heavy packages it imports", measured=len(ours["heavy"]), limit=0, unit=""),
        ]
    return Report(
        name="import_cost",
        title="Importing, in a fresh interpreter (median)",
        columns=["import", "ms", "x us", "modules", "heavy packages"],
        rows=[
            [
                _NAMES[contender],
                f"{figure['ms']:.0f}",
                f"{figure['ms'] / ours['ms']:.1f}" if ours else "",
                str(figure["modules"]),
                ", ".join(figure["heavy"]) or "none",
            ]
            for contender in contenders
            for figure in [figures[contender.name]]
        ],
        figures=figures,
        claims=claims,
        notes=notes,
    )


def time_import(dotted: str) -> dict[str, Any]:
    """Import `dotted` in a fresh interpreter; return milliseconds, modules, and the heavy ones among them."""
    module, _, name = dotted.rpartition(".")
    code = (
        "import sys, time\n"
        "before = set(sys.modules)\n"
        "started = time.perf_counter()\n"
        f"from {module} import {name}\n"
        "took = time.perf_counter() - started\n"
        "print(took * 1e3, *(set(sys.modules) - before))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    took, *came = finished.stdout.splitlines()[-1].split()
    return {"ms": float(took), "modules": len(came), "heavy": [name for name in _HEAVY if name in came]}


if __name__ == "__main__":
    run_alone(build)
