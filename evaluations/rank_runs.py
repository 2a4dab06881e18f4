"""Makes runs of real gloo ranks, several at a time, each rank forked from this process, and judges what was found."""

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
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from evaluations.rank_cases import ENDS_IT, NAMED_BY, Case

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
    is_critical: bool = False
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
        if not self.case.may_hang:
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
        if case.may_hang and not case.ranks and self.pids:
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
            is_critical=named.get("severity") == "critical",
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
