"""Fuzz each target in turn and report the results; `make fuzz` runs this.

python -m tests.fuzz --minutes 10 [--keep] [TARGET ...]
python -m tests.fuzz --replay FILE TARGET
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.corpus import CORPUS, inputs_of
from tests.fuzz.loop import Crashed, fuzz
from tests.fuzz.targets import TARGETS, Target, forget_scratch

ROOT = Path(__file__).parents[2]
_OUT = ROOT / "build" / "fuzz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one target."""

    executions: int
    coverage: str
    new: list[bytes]
    finding: Path | None = None


def main() -> int:
    """Fuzz, and return 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join(TARGETS)}")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of them together (default: 10)")
    parser.add_argument("--seed", type=int, default=None, help="begin with these random numbers")
    parser.add_argument(
        "--keep", action="store_true", help="add inputs that reached something new to the corpus"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run this one input")
    args = parser.parse_args()
    unknown = [name for name in args.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target is called {', '.join(unknown)}; there are: {', '.join(TARGETS)}")
    chosen = [TARGETS[name] for name in args.targets or TARGETS]
    if args.replay is not None:
        if len(chosen) != 1:
            parser.error("--replay needs the one TARGET that the input is for")
        chosen[0].fuzz_one(args.replay.read_bytes())
        print("It keeps its promises.")
        return 0
    seed = args.seed if args.seed is not None else time.time_ns() % 2**31
    found = []
    began = time.monotonic()
    total = 0
    for target in chosen:
        result = _fuzzed(target, seconds=args.minutes * 60 / len(chosen), seed=seed)
        total += result.executions
        print(
            f"{target.name:18} {result.executions:>10,} executions  {result.coverage}, {len(result.new)} new inputs",
            flush=True,
        )
        if args.keep:
            _keep(target, result.new)
        if result.finding is not None:
            found.append((target, result.finding))
    print(f"{total:,} executions in {(time.monotonic() - began) / 60:.1f} minutes, {len(found)} findings")
    for target, path in found:
        print(f"  python -m tests.fuzz --replay {os.path.relpath(path)} {target.name}")
    return 1 if found else 0


def _fuzzed(target: Target, *, seconds: float, seed: int) -> Result:
    seeds = [path.read_bytes() for path in inputs_of(target)]
    try:
        outcome = fuzz(target, seeds, seconds=seconds, seed=seed)
    except Crashed as crash:
        path = _OUT / target.name / f"crash-{hashlib.sha1(crash.data).hexdigest()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(crash.data)
        return Result(executions=crash.executions, coverage="stopped by a finding", new=[], finding=path)
    finally:
        forget_scratch()
    new = [item for item in outcome.kept if item not in seeds]
    return Result(executions=outcome.executions, coverage=f"{len(outcome.lines)} lines", new=new)


def _keep(target: Target, items: list[bytes]) -> None:
    for item in items:
        path = CORPUS / target.name / hashlib.sha1(item).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(item)


if __name__ == "__main__":
    sys.exit(main())
