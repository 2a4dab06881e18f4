"""Inject faults on real gloo ranks, and write docs/figures/ranks.md from what was found.

    python -m benchmarks.rank_faults run --out DIR --jobs 14 --seconds 420
    python -m benchmarks.rank_faults tables DIR/results.jsonl

`run` appends to the results of an earlier call, without the runs that are in them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rank_faults.cases import FAULTS, NO_FAULT, OF_EACH, WITHOUT, cases


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Inject faults on real gloo ranks.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="make the runs")
    run.add_argument("--out", type=Path, required=True, help="folder of results.jsonl")
    run.add_argument("--scratch", type=Path, help="folder of the runs themselves (default: OUT/runs)")
    run.add_argument("--jobs", type=int, default=2, help="runs at a time, of 4 and 8 ranks each")
    run.add_argument("--seconds", type=float, default=1e9, help="begin no run after so many seconds")
    run.add_argument("--of-each", type=int, default=OF_EACH, help="runs of each fault")
    run.add_argument("--without", type=int, default=WITHOUT, help="runs without a fault")
    run.add_argument("--only", nargs="+", default=[], choices=[NO_FAULT, *FAULTS], help="only these faults")
    run.add_argument("--keep", action="store_true", help="keep the run folders")
    tables = commands.add_parser("tables", help="write docs/figures/ranks.md")
    tables.add_argument("results", type=Path, help="results.jsonl of a run")
    tables.add_argument("--print", action="store_true", dest="only_print", help="print, write nothing")
    args = parser.parse_args(argv)
    if args.command == "tables":
        from benchmarks.rank_faults.tables import write_tables

        return write_tables(args.results, only_print=args.only_print)
    return _run(args)


def _run(args: argparse.Namespace) -> int:
    from benchmarks.rank_faults.launch import as_json, from_json, make_runs
    from benchmarks.rank_faults.score import Result, seconds_of

    args.out.mkdir(parents=True, exist_ok=True)
    results = args.out / "results.jsonl"
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    known = {from_json(line).case.name for line in lines}
    wanted = [
        case
        for case in cases(args.of_each, args.without)
        if case.name not in known and (not args.only or case.fault in args.only)
    ]

    def done(result: Result) -> None:
        with results.open("a", encoding="utf-8") as file:
            file.write(as_json(result) + "\n")
        print(seconds_of(result), file=sys.stderr, flush=True)

    about = {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "jobs": args.jobs,
        "torch": torch_version(),
    }
    (args.out / "machine.json").write_text(json.dumps(about), encoding="utf-8")

    make_runs(
        wanted,
        (args.scratch or args.out / "runs").absolute(),
        jobs=args.jobs,
        seconds=args.seconds,
        keep=args.keep,
        done=done,
    )
    return 0


def torch_version() -> str:
    """Return the version of torch, without importing it here."""
    from importlib.metadata import version

    return version("torch")


if __name__ == "__main__":
    sys.exit(main())
