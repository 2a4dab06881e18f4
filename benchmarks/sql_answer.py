"""How long `telemetry sql` takes for a first answer over many runs, in a new process, and what plain ways take."""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.report import Claim, Report

_WARM_S = 2.0
_PANDAS = """
import pathlib, sys, pandas as pd
paths = sorted(pathlib.Path(sys.argv[1]).glob("*/metrics.csv"))
table = pd.concat([pd.read_csv(path).assign(run=path.parent.name) for path in paths])
print(len(table[table["event"] == "step"].groupby("run")["train_loss"].min()))
"""
_DUCKDB = """
import sys, duckdb
duckdb.sql("set enable_progress_bar = false")
found = duckdb.sql(f"select filename, min(train_loss) from read_json('{sys.argv[1]}/*/metrics.jsonl', "
    "format='newline_delimited', columns={event: 'VARCHAR', train_loss: 'DOUBLE'}) "
    "where event = 'step' group by filename").fetchall()
print(len(found))
"""
_STATEMENT = "select run, min(loss) from steps group by run"


def build(options: Options) -> Report:
    """Ask for the smallest loss of each run: by us, without and with what was kept, by pandas and by DuckDB alone."""
    runs, records, rounds = (20, 500, 1) if options.quick else (1_000, 1_000, 2)
    say(f"sql: {runs:,} runs of {records:,} records")
    found: dict[str, list[dict[str, float]]] = measure_in_child(seconds_to_answer, runs, records, rounds)
    wall = {name: statistics.median(one["wall_s"] for one in taken) for name, taken in found.items()}
    cpu = {name: statistics.median(one["cpu_s"] for one in taken) for name, taken in found.items()}
    ours = wall["telemetry sql, warm"]
    return Report(
        name="sql_answer",
        title=f"The first answer of a new process over {runs:,} runs with {runs * records:,} records",
        columns=["what", "wall time", "processor time", "times ours"],
        rows=[
            [name, f"{wall[name]:.2f} s", f"{cpu[name]:.2f} s", f"{wall[name] / ours:.1f} x"]
            for name in found
        ],
        figures={"runs": runs, "records": records, "taken": found},
        claims=[
            Claim(
                text=f"{runs:,} runs, warm",
                measured=ours,
                limit=_WARM_S,
                unit=" s",
                # Other processes used the CPU for longer than this took.
                too_noisy=cpu["telemetry sql, warm"] <= _WARM_S < ours,
            )
        ],
    )


def seconds_to_answer(
    folder: Path, runs: int, records: int, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Return wall and processor time of each way, in turn."""
    import pandas as pd

    from benchmarks.large_run import write_many_runs
    from toolkit.telemetry.runfolder.layout import METRICS_CSV, METRICS_JSONL

    write_many_runs(folder / "logs", runs, records=records)
    places = sorted((folder / "logs").iterdir())
    table = io.StringIO()
    pd.read_json(places[0] / METRICS_JSONL, lines=True).to_csv(table, index=False)
    for place in places:
        (place / METRICS_CSV).write_text(table.getvalue(), encoding="utf-8")
    os.sync()
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    logs = str(folder / "logs")
    ask = ["-m", "toolkit.telemetry.cli", "sql", _STATEMENT, logs, "--csv"]
    found: dict[str, list[dict[str, float]]] = {"telemetry sql, cold": [_timed(ask, environ, runs + 1)]}
    for _ in range(rounds):
        for name, command, lines in (
            ("telemetry sql, warm", ask, runs + 1),
            ("pandas, read_csv of every metrics.csv", ["-c", _PANDAS, logs], 1),
            ("DuckDB, read_json of every metrics.jsonl", ["-c", _DUCKDB, logs], 1),
        ):
            found.setdefault(name, []).append(_timed(command, environ, lines))
    return found


def _timed(command: list[str], environ: dict[str, Any], lines: int) -> dict[str, float]:
    before, began = os.times(), time.perf_counter()
    done = subprocess.run([sys.executable, *command], env=environ, capture_output=True, text=True, check=True)
    wall, after = time.perf_counter() - began, os.times()
    assert len(done.stdout.splitlines()) == lines, done.stdout[-300:]
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall_s": wall, "cpu_s": cpu}


if __name__ == "__main__":
    run_alone(build)
