"""Makes the runs: forks the ranks of several at a time from one process that has imported torch, and ends them."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.rank_faults.cases import ENDS_IT, Case
from benchmarks.rank_faults.score import Result, ask_doctor, result_of

_JOB: Final = Path(__file__).with_name("job")
_EDIT: Final = ("label_smoothing=0.0", "label_smoothing=0.1")
_LONGEST_S: Final = 100.0
_AFTER_FAULT_S: Final = 16.0
"""How long the others go on where a fault ends the run."""
_DOCTOR_EVERY_S: Final = 1.0
_IMPORTED: Final = (
    *("torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo", "torch.profiler", "psutil"),
    *(
        "toolkit.telemetry.logger.logger",
        "toolkit.telemetry.mirrors.findings",
        "toolkit.telemetry.diagnostics.history",
    ),
    *("toolkit.telemetry.diagnostics.rank_watch", "toolkit.telemetry.diagnostics.rank_files"),
)
_NEW_HOST_NAME: Final = 0x04000000


@dataclass
class _Running:
    case: Case
    place: Path
    pids: dict[int, int]
    began: float = field(default_factory=time.monotonic)
    doctor: int | None = None
    struck_at: float | None = None


def make_runs(
    cases: Sequence[Case],
    root: Path,
    *,
    jobs: int,
    seconds: float,
    keep: bool,
    done: Callable[[Result], None],
) -> None:
    """Make the runs, `jobs` at a time, and give each result to `done`; after `seconds` none is begun any more."""
    # Imported once, and shared by all ranks that are forked.
    for name in _IMPORTED:
        importlib.import_module(name)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    waiting = list(cases)
    running: list[_Running] = []
    began = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < jobs and time.monotonic() - began < seconds:
                running.append(_start(waiting.pop(0), root))
            if not running:
                break
            time.sleep(0.05)
            for run in [each for each in running if _is_over(each)]:
                running.remove(run)
                _end(run)
                done(result_of(run.case, run.place))
                if not keep:
                    shutil.rmtree(run.place, ignore_errors=True)
    finally:
        for run in running:
            _end(run)


def _start(case: Case, root: Path) -> _Running:
    place = root / case.name
    shutil.rmtree(place, ignore_errors=True)
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
    return _Running(case, place, {rank: _fork_rank(case, rank, place) for rank in range(case.world)})


def _fork_rank(case: Case, rank: int, place: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _become(place / f"output-{rank}", case.host(rank))
        is_other = rank in case.ranks and case.fault in ("other code", "other data")
        code = place / ("other" if is_other else "usual")
        os.chdir(code)
        sys.path.insert(0, str(code))
        sys.argv = ["train.py"]
        spec = importlib.util.spec_from_file_location("__main__", code / "train.py")
        assert spec is not None
        assert spec.loader is not None
        script = importlib.util.module_from_spec(spec)
        sys.modules["__main__"] = script
        random.seed(case.seed + rank)
        spec.loader.exec_module(script)
        script.main(asdict(case), rank, place)
        status = 0
    except BaseException:  # noqa: BLE001  # a forked child must not return into the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _fork_doctor(case: Case, place: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        left = next((rank for rank in range(case.world) if rank not in case.ranks), 0)
        _become(place / "output-doctor", case.host(left))
        while not ask_doctor(case, place):
            time.sleep(_DOCTOR_EVERY_S)
    except BaseException:  # noqa: BLE001  # see above
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _become(output: Path, host: str | None) -> None:
    """Make this forked child a process of its own: with its output in a file, and perhaps another host name."""
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.setpgid(0, 0)
    if host is not None:
        with contextlib.suppress(OSError, PermissionError):
            if ctypes.CDLL(None, use_errno=True).unshare(_NEW_HOST_NAME) == 0:
                socket.sethostname(host)
        if socket.gethostname() != host:
            # Not allowed here: then only what this process calls itself.
            socket.gethostname = lambda: host


def _is_over(run: _Running) -> bool:
    for rank, pid in list(run.pids.items()):
        if os.waitpid(pid, os.WNOHANG)[0]:
            del run.pids[rank]
    age = time.monotonic() - run.began
    if run.struck_at is None and any((run.place / f"fault-{rank}").exists() for rank in run.case.ranks):
        run.struck_at = age
    ends_it = run.case.fault in ENDS_IT and run.struck_at is not None
    if ends_it and 0 in run.case.ranks and run.doctor is None:
        run.doctor = _fork_doctor(run.case, run.place)
    if run.doctor:
        if os.waitpid(run.doctor, os.WNOHANG)[0]:
            run.doctor = 0
            return True
        return age > (run.struck_at or 0.0) + 2 * _AFTER_FAULT_S
    if not run.pids or age > _LONGEST_S:
        return True
    return ends_it and age > (run.struck_at or 0.0) + _AFTER_FAULT_S


def _end(run: _Running) -> None:
    for pid in (*run.pids.values(), *([run.doctor] if run.doctor else [])):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in (*run.pids.values(), *([run.doctor] if run.doctor else [])):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def as_json(result: Result) -> str:
    """Return one line with a result."""
    return json.dumps(asdict(result))


def from_json(line: str) -> Result:
    """Return the result in a line."""
    fields: dict[str, Any] = json.loads(line)
    case = {**fields["case"], "ranks": tuple(fields["case"]["ranks"])}
    return Result(**{**fields, "case": Case(**case)})
