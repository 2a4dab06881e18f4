"""Fuzz each target in turn and report the results; `make fuzz` runs this.

python -m tests.fuzz --minutes 10 [--keep] [TARGET ...]
python -m tests.fuzz --replay FILE TARGET
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.corpus import CORPUS, inputs_of, write_dictionary
from tests.fuzz.loop import Crashed, fuzz
from tests.fuzz.provision import has_atheris
from tests.fuzz.targets import LONGEST_INPUT, TARGETS, Target, forget_scratch

ROOT = Path(__file__).parents[2]
_OUT = ROOT / "build" / "fuzz"
_SLOWEST_S = 60


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
    guided = _with_atheris if has_atheris() else _with_the_stand_in
    if guided is _with_the_stand_in:
        print(
            "atheris is not installed: the stand-in in plain Python is used, which proves less.", flush=True
        )
    seed = args.seed if args.seed is not None else time.time_ns() % 2**31
    found = []
    began = time.monotonic()
    total = 0
    for target in chosen:
        result = guided(target, seconds=args.minutes * 60 / len(chosen), seed=seed)
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


def _with_atheris(target: Target, *, seconds: float, seed: int) -> Result:
    out = _OUT / target.name
    new = out / "new"
    new.mkdir(parents=True, exist_ok=True)
    before = {path.name for path in new.iterdir()}
    write_dictionary(target, out / "words.dict")
    (CORPUS / target.name).mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fuzz.guided",
            target.name,
            f"-max_total_time={max(1, round(seconds))}",
            f"-seed={seed}",
            f"-max_len={LONGEST_INPUT}",
            f"-timeout={_SLOWEST_S}",
            "-rss_limit_mb=8192",
            "-print_final_stats=1",
            f"-dict={out / 'words.dict'}",
            f"-artifact_prefix={out}/",
            str(new),
            str(CORPUS / target.name),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
    )
    said = done.stderr + done.stdout
    (out / "log.txt").write_text(said)
    executions = re.findall(r"stat::number_of_executed_units:\s+(\d+)", said) or re.findall(r"#(\d+)\s", said)
    coverage = re.findall(r"cov: (\d+) ft: (\d+)", said)
    # As libFuzzer reports them: one that an earlier run found already is a file that is already there.
    artifacts = [Path(path) for path in re.findall(r"Test unit written to (.+)", said)]
    if done.returncode and not artifacts:
        raise RuntimeError(f"{target.name} could not be fuzzed:\n{said[-2_000:]}")
    return Result(
        executions=int(executions[-1]) if executions else 0,
        coverage="{} branches, {} features".format(*coverage[-1]) if coverage else "no coverage",
        new=[path.read_bytes() for path in new.iterdir() if path.name not in before],
        finding=artifacts[0] if artifacts else None,
    )


def _with_the_stand_in(target: Target, *, seconds: float, seed: int) -> Result:
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
