"""Make hangs, and runs that only take long, on real gloo ranks, and write docs/figures/rank-hangs.md.

    python -m benchmarks.rank_hangs --out DIR --jobs 3

The figures are written once all runs are there; a later call makes those that are missing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import json
import os
import platform
import random
import shutil
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import APPENDICES, put_between_marks

TUNED: Final = ("before forward", "data loader", "backward", "other shape", "killed")
HELD_OUT: Final = ("other path", "lock", "ends early", "holds the interpreter", "computes for ever")
HEALTHY: Final = (
    *("evaluates alone", "saves alone in a span", "saves alone", "all pause"),
    *("long batches", "slow first steps", "slow rank", "plain"),
)
WITHOUT_LINE: Final = ("other shape", "killed", "ends early")
"""Here the rank that was named may be at any line."""
HEALTHY_HELD_OUT: Final = ("evaluates slow data alone",)
OF_EACH: Final = {**dict.fromkeys(TUNED, 12), **dict.fromkeys((*HELD_OUT, *HEALTHY, *HEALTHY_HELD_OUT), 5)}
STYLES: Final = ("DDP", "all_reduce", "async", "group")
HANG_AFTER_S: Final = 4.0
_LONGEST_S: Final = 120.0
_AFTER_S: Final = 30.0
"""How long a hung run is left alone after the limit, if nothing is found."""
_NAMES_IT: Final = ("rank_hung", "rank_dead", "rank_silent")
_IMPORTED: Final = (
    *("torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch._dynamo", "psutil"),
    *("toolkit.telemetry.logger.logger", "toolkit.telemetry.mirrors.findings"),
    *("toolkit.telemetry.diagnostics.history", "toolkit.telemetry.diagnostics.rank_watch"),
    *("toolkit.telemetry.diagnostics.rank_files", "benchmarks.rank_hangs.job"),
)
DOCUMENT: Final = APPENDICES / "rank-hangs.md"
BEGIN: Final = "<!-- figures: written by python -m benchmarks.rank_hangs -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    name: str
    kind: str
    is_hang: bool
    world: int
    rank: int
    step: int
    style: str
    hang_after: float = HANG_AFTER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was found in one run."""

    name: str
    kind: str
    is_right: bool
    """The rank was named, and no other was."""
    has_line: bool
    is_critical: bool
    late_s: float | None
    """Seconds after the limit."""
    wrong: tuple[str, ...]
    """Findings about another rank, or about any if nothing hangs."""
    problem: str = ""


def cases() -> list[Case]:
    """Return all runs, mixed so that those of any first part are of all kinds."""
    found = []
    for kind, count in OF_EACH.items():
        for number in range(count):
            draw = random.Random(f"{kind} {number}")
            world = (4, 8)[number % 2]
            style = STYLES[(number // 2) % len(STYLES)]
            # What ends a collective of DDP's is an exception in the others.
            style = "all_reduce" if kind in ("other shape", "other path") else style
            case = Case(
                name=f"{kind} {number}".replace(" ", "-"),
                kind=kind,
                is_hang=kind in (*TUNED, *HELD_OUT),
                world=world,
                rank=draw.randrange(1 if kind in ("killed", "holds the interpreter") else 0, world),
                step=draw.randrange(14, 24),
                style=style,
            )
            found.append(((number + 0.5) / count, case))
    return [case for _, case in sorted(found, key=lambda each: each[0])]


class Run:
    """The processes of one run."""

    def __init__(self, case: Case, root: Path) -> None:
        self.case, self.place = case, root / case.name
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        self.pids = {rank: _fork(case, rank, self.place) for rank in range(case.world)}
        self.began = time.monotonic()

    def is_over(self) -> bool:
        """Whether it has ended, was named, or has had enough time."""
        for rank, pid in list(self.pids.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self.pids[rank]
        if not self.pids or time.monotonic() - self.began > _LONGEST_S:
            return True
        if not self.case.is_hang:
            return False
        struck = self.struck_at()
        if struck is None:
            return False
        # A little longer, so that a second, wrong answer is seen.
        answers = [each["time"] for each in self.findings() if self.case.rank in _ranks(each)]
        now = time.time()
        return now > struck + self.case.hang_after + _AFTER_S or any(now > at + 3.0 for at in answers)

    def struck_at(self) -> float | None:
        """Return when the fault began."""
        with contextlib.suppress(OSError, ValueError):
            return float((self.place / f"fault-{self.case.rank}").read_text())
        return None

    def findings(self) -> list[dict[str, Any]]:
        """Return the warnings about ranks that rank 0 has written."""
        with contextlib.suppress(OSError):
            lines = (self.place / "logs" / "run" / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
            records = [json.loads(line) for line in lines if b'"finding"' in line]
            return [each for each in records if each["kind"] in _NAMES_IT and each["state"] == "open"]
        return []

    def end(self) -> None:
        """Kill what is left."""
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def result(self) -> Result:
        """Return how well it was read."""
        from benchmarks.rank_hangs.job import LINE

        case, struck = self.case, self.struck_at()
        findings = self.findings()
        right = [each for each in findings if case.is_hang and _ranks(each) == [case.rank]]
        first = right[0] if right else {}
        problem = "" if struck is not None or not case.is_hang else "the fault was not reached"
        if not case.is_hang and (self.pids or not (self.place / "logs" / "run" / "metrics.jsonl").exists()):
            problem = "it did not end"
        return Result(
            name=case.name,
            kind=case.kind,
            is_right=bool(right),
            has_line=LINE.get(case.kind, "") in first.get("message", "") if right else False,
            is_critical=any(each["severity"] == "critical" for each in right),
            late_s=round(first["time"] - struck - case.hang_after, 2) if right and struck else None,
            wrong=tuple(each["message"] for each in findings if each not in right),
            problem=problem,
        )


def _ranks(finding: dict[str, Any]) -> list[int]:
    from toolkit.telemetry.diagnostics.finding import ranks_in

    return ranks_in(finding.get("evidence", {}))


def _fork(case: Case, rank: int, place: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        with (place / f"output-{rank}").open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.setpgid(0, 0)
        random.seed(rank)
        from benchmarks.rank_hangs.job import main as train

        train(asdict(case), rank, place)
        status = 0
    except BaseException:  # noqa: BLE001  # a forked child must not return into the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def make_runs(wanted: Sequence[Case], root: Path, *, jobs: int, keep: bool = False) -> list[Result]:
    """Make the runs, `jobs` at a time, and return what was found in each."""
    for name in _IMPORTED:
        importlib.import_module(name)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    waiting, running, results = list(wanted), list[Run](), list[Result]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Run(waiting.pop(0), root))
            time.sleep(0.2)
            for run in [each for each in running if each.is_over()]:
                results.append(run.result())
                run.end()
                running.remove(run)
                print(results[-1], file=sys.stderr, flush=True)
                if not keep:
                    shutil.rmtree(run.place, ignore_errors=True)
    finally:
        for run in running:
            run.end()
    return results


def table_of(results: Sequence[Result], about: str) -> str:
    """Return the figures as Markdown."""
    whole = [each for each in results if not each.problem]
    rows: list[tuple[str, ...]] = [
        (
            "what hangs",
            "right rank",
            "line named",
            "critical",
            "seconds after the limit: median, worst",
        )
    ]
    rows.append(("---",) * len(rows[0]))
    for title, kinds in (
        *((kind, (kind,)) for kind in TUNED),
        ("**these together**", TUNED),
        *((f"{kind} (only tried)", (kind,)) for kind in HELD_OUT),
    ):
        mine = [each for each in whole if each.kind in kinds]
        late = sorted(each.late_s for each in mine if each.late_s is not None)
        of = _share if len(kinds) > 1 else _count
        rows.append(
            (
                title,
                of([each.is_right for each in mine]),
                of([each.has_line for each in mine if each.kind not in WITHOUT_LINE]),
                of([each.is_critical for each in mine]),
                f"{statistics.median(late):.1f}, {late[-1]:.1f}" if late else "-",
            )
        )
    healthy = [each for each in whole if each.kind in (*HEALTHY, *HEALTHY_HELD_OUT)]
    of_kind = ", ".join(
        f"{kind} {sum(each.kind == kind for each in healthy)}" for kind in (*HEALTHY, *HEALTHY_HELD_OUT)
    )
    alarms = _share([bool(each.wrong) for each in healthy])
    others = sum(bool(each.wrong) for each in whole if each not in healthy)
    missed = ", ".join(each.name for each in whole if each.kind in TUNED and not each.is_right) or "none"
    left = len(results) - len(whole)
    lines = [
        f"Slow but healthy: {len(healthy)} runs ({of_kind}), false alarms {alarms}.",
        *(f"- {each.name}: {each.wrong[0]}" for each in healthy if each.wrong),
        f"Hung runs with a finding about another rank: {others}. Not named: {missed}. Not made: {left}.",
    ]
    return "\n\n".join([about, "\n".join(f"| {' | '.join(row)} |" for row in rows), *lines])


def _count(found: Sequence[bool]) -> str:
    return f"{sum(found)}/{len(found)}" if found else "-"


def _share(found: Sequence[bool]) -> str:
    """Return a count with its 95 % interval (Wilson)."""
    if not found:
        return "-"
    total, share, z = len(found), sum(found) / len(found), 1.96
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    wide = z / (1 + z * z / total) * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    return f"{_count(found)} ({max(0.0, middle - wide):.2f} to {min(1.0, middle + wide):.2f})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Make hangs on real gloo ranks.")
    parser.add_argument("--out", type=Path, required=True, help="folder of results.jsonl")
    parser.add_argument("--jobs", type=int, default=3, help="runs at a time, of 4 and 8 ranks each")
    parser.add_argument(
        "--only", nargs="+", default=list(OF_EACH), choices=list(OF_EACH), help="only these kinds"
    )
    parser.add_argument("--most", type=int, default=1_000, help="make at most so many runs")
    parser.add_argument("--keep", action="store_true", help="keep the run folders")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "results.jsonl"
    results = [Result(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    known = {each.name for each in results}
    wanted = [case for case in cases() if case.name not in known and case.kind in args.only][: args.most]
    new = make_runs(wanted, args.out.absolute() / "runs", jobs=args.jobs, keep=args.keep)
    with file.open("a") as out:
        out.writelines(json.dumps(asdict(each)) + "\n" for each in new)
    results += new
    torch = importlib.import_module("torch").__version__
    text = table_of(
        results,
        f"{len(results)} runs on {os.cpu_count()} cores ({platform.machine()}), {args.jobs} at a time, torch {torch}, "
        f"`hang_after` {HANG_AFTER_S:g} s, {datetime.datetime.now(tz=datetime.timezone.utc):%Y-%m-%d}.",
    )
    print(text)
    if len(results) == len(cases()):
        DOCUMENT.write_text(
            put_between_marks(DOCUMENT.read_text(encoding="utf-8"), text, BEGIN), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
