"""How often a rank that fails, is slow or hangs is named, and nothing is said of ranks that only take long."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from evaluations.figures import Options, say, share, table

PAGE: Final = "ranks.md"
_FAULTS_EACH: Final = 12
_WITHOUT: Final = 40
_LONG_EACH: Final = 5
_HELD_OUT_EACH: Final = 5


def run(options: Options) -> str:
    """Make the runs and return the figures."""
    each = 1 if options.quick else _FAULTS_EACH
    wanted = [
        *cases((*FAULTS, *HANGS), each),
        *cases((NO_FAULT,), 2 if options.quick else _WITHOUT),
        *cases(LONG, 1 if options.quick else _LONG_EACH),
        *([] if options.quick else cases(HELD_OUT, _HELD_OUT_EACH)),
    ]
    jobs = max(3, (os.cpu_count() or 2) - 2)
    results = []
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        for result in make_runs(wanted, Path(folder), jobs=jobs):
            results.append(result)
            if len(results) % 20 == 0:
                say(f"{len(results)} of {len(wanted)} runs")
            if options.list_errors and (result.wrong or not result.is_right_rank or result.problem):
                print(result, file=sys.stderr)
    about = f"{len(results)} runs of 4 and 8 real gloo ranks on {os.cpu_count()} cores, {jobs} at a time"
    whole = [each for each in results if not each.problem]
    rows = [
        *(_row(kind, [each for each in whole if each.case.fault == kind]) for kind in (*FAULTS, *HANGS)),
        _row("**these together**", [each for each in whole if each.case.fault in (*FAULTS, *HANGS)]),
        *(
            _row(f"{kind}, held out", [each for each in whole if each.case.fault == kind])
            for kind in HELD_OUT
        ),
    ]
    header = ("fault", "right rank", "right part or line", "seconds: median, worst")
    clean = [each for each in whole if each.case.fault == NO_FAULT]
    long = [each for each in whole if each.case.fault in LONG]
    head = (
        f"{about}; {len(results) - len(whole)} more did not start or did not reach their fault. What counts is "
        "the live run's own finding that names the rank and no other; where rank 0 is gone, that of "
        f"`telemetry doctor`. Hangs: seconds after the limit, which is {HANG_AFTER_S:g} s."
    )
    alarms = [share(sum(bool(each.wrong) for each in those), len(those)) for those in (clean, long)]
    too = sum(bool(each.wrong) for each in whole if each not in (*clean, *long))
    healthy = (
        f"Without a fault: false alarms in {alarms[0]} of {len(clean)} runs; in {alarms[1]} of {len(long)} that "
        f"take longer than a hang's limit. Runs with a fault and a wrong finding, too: {too}."
    )
    wrong = [f"- {each.case.name}: {each.wrong[0]}" for each in (*clean, *long) if each.wrong]
    return "\n\n".join([head, table(header, [row for row in rows if row[1] != "-"]), healthy, *wrong])


def _row(title: str, results: Sequence[Result]) -> tuple[str, ...]:
    if not results:
        return (title, "-")
    right = [each for each in results if each.is_right_rank]
    parts = [each.is_right_part for each in right if each.is_right_part is not None]
    seconds = sorted(each.seconds for each in right if each.seconds is not None)
    count = share if title.startswith("**") else _of
    return (
        title,
        count(len(right), len(results)),
        count(sum(parts), len(parts)) if parts else "-",
        f"{statistics.median(seconds):.1f}, {seconds[-1]:.1f}" if seconds else "-",
    )


def _of(right: int, of: int) -> str:
    return f"{right}/{of}"


# ---------------------------------------------------------------- runs


NO_FAULT: Final = "none"
FAULTS: Final = (
    *("killed", "stopped", "slow by 10 %", "slow by 30 %", "slow by 100 %", "slow disk", "slow data loader"),
    *("NaN", "other code", "other data", "node dies"),
)
HANGS: Final = ("before forward", "data loader", "backward", "other shape")
HELD_OUT: Final = ("other path", "lock", "ends early", "holds the interpreter", "computes for ever")
"""Hangs that the rules were not written with."""
LONG: Final = (
    *("evaluates alone", "evaluates slow data alone", "saves alone in a span", "saves alone", "all pause"),
    *("long batches", "slow first steps", "slow rank", "plain"),
)
"""Runs that take longer than the limit of a hang and do not hang."""
NAMED_BY: Final = {
    **dict.fromkeys(("killed", "node dies"), ("rank_dead", "rank_silent")),
    "stopped": ("rank_silent",),
    **dict.fromkeys(FAULTS[2:7], ("straggler",)),
    "NaN": ("rank_nan",),
    **dict.fromkeys(("other code", "other data"), ("rank_differs",)),
    **dict.fromkeys((*HANGS, *HELD_OUT), ("rank_hung", "rank_dead", "rank_silent")),
}
"""The findings that name a fault."""
SLOW_BY: Final = {"slow by 10 %": 0.1, "slow by 30 %": 0.3, "slow by 100 %": 1.0}
FROM_START: Final = ("other code", "other data")
"""Faults that a rank has from its first step on."""
ENDS_IT: Final = ("killed", "stopped", "node dies")
STYLES: Final = ("plain", "rank 0 saves", "long tail", "pairs")
"""What is no fault: rank 0 alone saves and evaluates, batches that take long now and then, and ranks in pairs that get
the same batches, as where a model is split over two."""
EXCHANGES: Final = ("DDP", "all_reduce", "async")
"""How ranks that hang average their gradients."""
STEPS: Final = 380
HANG_AFTER_S: Final = 4.0
_STEPS_TO_HANG: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    name: str
    fault: str
    world: int
    ranks: tuple[int, ...] = ()
    """Those that have the fault."""
    step: int
    """From which step on."""
    seed: int
    variant: int
    style: str = "plain"
    exchange: str = "DDP"
    waits: bool = False
    """Whether the others wait when a rank is gone, as under NCCL; else their exchange fails, as under gloo."""
    steps: int = STEPS
    slow_by: float = 0.0
    on_node: int = 0
    """Ranks on each node; 0 where all are on this machine."""
    hang_after: float = 0.0
    """The limit of a hang in seconds, in runs that hang or take long: their steps have no spans; 0 in the others."""

    def host(self, rank: int) -> str | None:
        """Return the host name of a rank's node; None for this machine's own."""
        return f"node{rank // self.on_node}" if self.on_node else None


def cases(kinds: Sequence[str], of_each: int) -> list[Case]:
    """Return `of_each` runs of each kind, mixed so that those of any first part are of all."""
    found = [
        ((number + 0.5) / of_each, (_hang if kind in (*HANGS, *HELD_OUT, *LONG) else _case)(kind, number))
        for kind in kinds
        for number in range(of_each)
    ]
    return [case for _, case in sorted(found, key=lambda each: each[0])]


def _named(kind: str, number: int) -> str:
    return f"{kind} {number}".replace(" ", "-").replace("%", "percent")


def _hang(kind: str, number: int) -> Case:
    draw = random.Random(f"{kind} {number}")
    world = (4, 8)[number % 2]
    rank = draw.randrange(1 if kind == "holds the interpreter" else 0, world)
    exchange = EXCHANGES[number // 2 % len(EXCHANGES)]
    return Case(
        name=_named(kind, number),
        fault=kind,
        world=world,
        ranks=() if kind in LONG else (rank,),
        step=draw.randrange(14, 24),
        seed=rank,
        variant=number // 2 % 2,
        # What ends a collective of DDP's is an exception in the others.
        exchange="all_reduce" if kind in ("other shape", "other path") else exchange,
        waits=kind == "other shape",
        steps=_STEPS_TO_HANG,
        hang_after=HANG_AFTER_S,
    )


def _case(fault: str, number: int) -> Case:
    draw = random.Random(f"{fault} {number}")
    world = (4, 8)[number % 2]
    ranks: tuple[int, ...] = (draw.randrange(world),)
    variant = number // 2 % 2
    on_node = 4 if world == 8 and variant else 2
    if fault == "node dies":
        first = on_node * (0 if number % 10 == 9 else draw.randrange(1, world // on_node))
        ranks = tuple(range(first, first + on_node))
    if fault == NO_FAULT:
        ranks = ()
    style = STYLES[number % 4 if fault == NO_FAULT else draw.randrange(3)]
    if fault == "slow disk":
        # Where rank 0 alone saves, its disk is not one rank's fault to tell.
        style = "plain" if style == "rank 0 saves" else style
    return Case(
        name=_named(fault, number),
        fault=fault,
        world=world,
        ranks=ranks,
        step=1 if fault in FROM_START else draw.randrange(90, 140),
        seed=draw.randrange(1, 10_000),
        variant=variant,
        style=style,
        waits=fault in ENDS_IT and variant == 1,
        slow_by=SLOW_BY.get(fault, 0.0),
        on_node=on_node if fault == "node dies" else 0,
    )


# ---------------------------------------------------------------- processes


_JOB: Final = Path(__file__).with_name("rank_job")
_EDIT: Final = ("label_smoothing=0.0", "label_smoothing=0.1")
_LONGEST_S: Final = 120.0
_AFTER_FAULT_S: Final = 16.0
"""How long the others go on where a fault ends the run."""
_AFTER_LIMIT_S: Final = 30.0
"""How long a hung run is left alone after the limit, if nothing is found."""
_SECOND_ANSWER_S: Final = 3.0
"""How long a hung run goes on after its finding, so that a second, wrong one is seen."""
_DOCTOR_EVERY_S: Final = 1.0
_IMPORTED: Final = (
    *("torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo", "torch.profiler", "psutil"),
    *("toolkit.telemetry.logger.logger", "toolkit.telemetry.mirrors.findings"),
    *("toolkit.telemetry.diagnostics.history", "toolkit.telemetry.diagnostics.rank_watch"),
    "toolkit.telemetry.diagnostics.rank_files",
)
_NEW_HOST_NAME: Final = 0x04000000
_OF_RANKS: Final = frozenset(kind for kinds in NAMED_BY.values() for kind in kinds)
_RANK: Final = re.compile(r"rank(_\d+)?")
LINE: Final = {
    "before forward": "prepare_batch",
    "data loader": "read_sample",
    "backward": "compute_gradient",
    "other path": "follow_other_path",
    "lock": "wait_for_lock",
    "holds the interpreter": "hold_interpreter",
    "computes for ever": "spin",
}
"""The functions of the job that a finding has to name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How well a run was read."""

    case: Case
    is_right_rank: bool = False
    """A finding of the fault's kind, after the fault, names all of the faulty ranks and no other."""
    is_right_part: bool | None = None
    """Whether it names the part of the step, the file or the line; None where a fault has none."""
    seconds: float | None = None
    """From the fault, or from the limit of a hang, to the finding."""
    wrong: tuple[str, ...] = ()
    """Warnings about ranks before the fault, of another kind, or about another rank."""
    problem: str = ""
    """Why the run does not count."""


class Run:
    """The processes of one run."""

    def __init__(self, case: Case, root: Path) -> None:
        self.case, self.place = case, root / case.name
        shutil.rmtree(self.place, ignore_errors=True)
        _write_code(case, self.place)
        self.pids = {rank: _fork(self._be_rank, rank) for rank in range(case.world)}
        self.doctor: int | None = None
        self.began = time.monotonic()

    def is_over(self) -> bool:
        """Whether it has ended, or has had enough time."""
        for rank, pid in list(self.pids.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self.pids[rank]
        struck = min(_times(self.place, "fault"), default=None)
        if self.doctor and os.waitpid(self.doctor, os.WNOHANG)[0]:
            self.doctor = 0
            return True
        if time.monotonic() - self.began > _LONGEST_S or (not self.pids and not self.doctor):
            return True
        if struck is None:
            return False
        age = time.time() - struck
        if self.case.fault in ENDS_IT:
            if 0 not in self.case.ranks:
                return age > _AFTER_FAULT_S
            # Rank 0 is gone, so that nothing is written any more.
            if self.doctor is None:
                self.doctor = _fork(self._be_doctor, -1)
            return age > 2 * _AFTER_FAULT_S
        if not self.case.hang_after:
            return False
        answers = [each["time"] for each in self.findings() if set(each["ranks"]) == set(self.case.ranks)]
        is_answered = any(time.time() > at + _SECOND_ANSWER_S for at in answers)
        return is_answered or age > self.case.hang_after + _AFTER_LIMIT_S

    def findings(self) -> list[dict[str, Any]]:
        """Return the warnings about ranks, of rank 0 or of `telemetry doctor`, the first record of each."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for record in self.records():
            if record["event"] == "finding":
                about = _about(record, record["time"])
                found.setdefault((record["id"], str(about["ranks"])), about)
        doctor = self.place / "doctor.json"
        asked = json.loads(doctor.read_text()) if doctor.exists() else []
        return [
            each
            for each in (*found.values(), *asked)
            if each["kind"] in _OF_RANKS and each["severity"] != "info" and each["state"] == "open"
        ]

    def records(self) -> list[dict[str, Any]]:
        """Return what rank 0 has written."""
        with contextlib.suppress(OSError):
            lines = (self.place / "logs" / "run" / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
            return [json.loads(line) for line in lines]
        return []

    def end(self) -> None:
        """Kill what is left."""
        for pid in filter(None, (*self.pids.values(), self.doctor)):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def result(self) -> Result:
        """Return how well it was read."""
        case, records = self.case, self.records()
        struck, began = (
            min(_times(self.place, "fault"), default=None),
            min(_times(self.place, "began"), default=None),
        )
        if not records or began is None:
            return Result(case=case, problem="nothing was written")
        if case.ranks and struck is None:
            return Result(case=case, problem="the fault was not reached")
        if case.hang_after and not case.ranks and self.pids:
            return Result(case=case, problem="it did not end")
        wanted = set(case.ranks)
        if case.fault == "other data" and case.variant == 0:
            # It gets the batches of the rank after it: nothing says which of the two is wrong.
            wanted.add((case.ranks[0] + 1) % case.world)
        named: dict[str, Any] = {}
        wrong = []
        for each in self.findings():
            is_after = struck is not None and each["time"] >= struck
            if not is_after or not set(each["ranks"]) <= wanted or not _is_of(each["kind"], case.fault):
                wrong.append(f"{each['kind']}: {each['message']}")
            elif each["kind"] in NAMED_BY[case.fault] and set(each["ranks"]) == wanted:
                named = named or each
        return Result(
            case=case,
            is_right_rank=bool(named),
            is_right_part=_part_is_right(case, named) if named else None,
            seconds=named["time"] - struck - case.hang_after if named and struck else None,
            wrong=tuple(wrong),
        )

    def _be_rank(self, rank: int) -> None:
        case = self.case
        _become(self.place / f"output-{rank}", case.host(rank))
        code = self.place / (
            "other" if rank in case.ranks and case.fault in ("other code", "other data") else "usual"
        )
        os.chdir(code)
        sys.path.insert(0, str(code))
        sys.argv = ["train.py"]
        spec = importlib.util.spec_from_file_location("__main__", code / "train.py")
        assert spec is not None
        assert spec.loader is not None
        script = importlib.util.module_from_spec(spec)
        # The code that a run records is found from there.
        sys.modules["__main__"] = script
        spec.loader.exec_module(script)
        script.main(asdict(case), rank, self.place)

    def _be_doctor(self, _: int) -> None:
        from toolkit.telemetry.diagnostics.history import diagnose

        case = self.case
        left = next((rank for rank in range(case.world) if rank not in case.ranks), 0)
        _become(self.place / "output-doctor", case.host(left))
        while True:
            diagnosis = diagnose(self.place / "logs" / "run")
            now = time.time()
            found = [_about(finding.to_fields(), now) for finding in diagnosis.findings]
            mine = [
                each
                for each in found
                if each["kind"] in NAMED_BY[case.fault] and set(case.ranks) & set(each["ranks"])
            ]
            if mine:
                (self.place / "doctor.json").write_text(json.dumps(mine))
                return
            time.sleep(_DOCTOR_EVERY_S)


def make_runs(cases: Sequence[Case], root: Path, *, jobs: int) -> Iterator[Result]:
    """Make the runs, `jobs` at a time, and yield how each was read."""
    # Imported once, and shared by all ranks that are forked.
    for name in _IMPORTED:
        importlib.import_module(name)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    waiting, running = list(cases), list[Run]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Run(waiting.pop(0), root))
            time.sleep(0.1)
            for run in [each for each in running if each.is_over()]:
                result = run.result()
                run.end()
                running.remove(run)
                shutil.rmtree(run.place, ignore_errors=True)
                yield result
    finally:
        for run in running:
            run.end()


def _write_code(case: Case, place: Path) -> None:
    draw = np.random.default_rng(case.seed)
    rows = draw.standard_normal((20_000, 32), dtype=np.float32).astype(np.float16)
    for folder, is_other in (("usual", False), ("other", True)):
        code = place / folder
        (code / "data").mkdir(parents=True)
        for name in ("train", "model"):
            text = (_JOB / f"{name}.py").read_text()
            if is_other and case.fault == "other code" and name == "model":
                text = text.replace(*_EDIT)
            (code / f"{name}.py").write_text(text)
        if is_other and case.fault == "other data" and case.variant:
            rows = rows[:, ::-1]
        np.save(code / "data" / "train.npy", rows)


def _fork(be: Callable[[int], None], rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        random.seed(rank)
        be(rank)
        status = 0
    except BaseException:  # noqa: BLE001  # a forked child must not return into the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _become(output: Path, host: str | None) -> None:
    """Make this forked child a process of its own: with its output in a file, and perhaps another host name."""
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.setpgid(0, 0)
    if host is not None:
        with contextlib.suppress(OSError, PermissionError):
            # `os.unshare` came with Python 3.12.
            if ctypes.CDLL(None, use_errno=True).unshare(_NEW_HOST_NAME) == 0:
                socket.sethostname(host)
        if socket.gethostname() != host:
            # Not allowed here: then only what this process calls itself.
            socket.gethostname = lambda: host


def _times(place: Path, what: str) -> list[float]:
    # A rank that was killed by another one may have been writing its own.
    texts = [path.read_text() for path in place.glob(f"{what}-*")]
    return [json.loads(text)["time"] for text in texts if text.endswith("}")]


def _about(record: dict[str, Any], time_s: float) -> dict[str, Any]:
    evidence = record.get("evidence") or {}
    ranks = sorted(int(value) for name, value in evidence.items() if _RANK.fullmatch(name))
    kept = {name: record[name] for name in ("kind", "severity", "metric", "state", "message")}
    return {**kept, "time": time_s, "ranks": ranks}


def _is_of(kind: str, fault: str) -> bool:
    """Return whether a kind follows from a fault: other data may also be slow, a dead rank is silent first."""
    return kind in NAMED_BY.get(fault, ()) or (fault in ("killed", "stopped") and kind.startswith("rank_"))


def _part_is_right(case: Case, finding: dict[str, Any]) -> bool | None:
    metric, message, fault = str(finding["metric"]), finding["message"], case.fault
    if fault in LINE:
        return LINE[fault] in message
    if fault.startswith("slow by"):
        return metric in ("time/forward", "time/backward", "time/training_iteration")
    if fault == "slow data loader":
        return metric == "time/data_loading"
    if fault == "slow disk":
        part = "write_predictions" if case.variant else "checkpoint_save"
        return part in metric or (bool(case.variant) and "outside of the timed parts" in message)
    if fault == "node dies":
        return f"node{case.ranks[0] // case.on_node}" in message
    if fault == "other code":
        return "model.py" in message
    return "data" in message if fault == "other data" else None
