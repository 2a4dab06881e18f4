"""A helper process instead of threads: what happens at a kill, at a fork, at Ctrl-C and in a container.

Each trial starts a small training that logs 200 steps a second with one NaN among them, does something to it, and
looks at what is left: `python -m benchmarks.helper_faults`, about a minute. Containers are imitated with `unshare` and
a control group, which needs root on Linux.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.child import ROOT
from benchmarks.command import Options, parse, say
from benchmarks.helper_child import FINDINGS, Helper
from benchmarks.helper_process import HELPER, THREADS, WITHOUT, Run
from benchmarks.report import Report
from toolkit.runfolder.layout import METRICS_CSV, METRICS_JSONL

_STEPS: Final = 500
_NAN_AT: Final = 300
_LONGEST_WAIT_S: Final = 20.0
_PID_LIMIT: Final = 6
_NAN: Final = re.compile(rb'"kind": ?"nan"')
_PIDS: Final = Path("/sys/fs/cgroup/pids")


_started: list[subprocess.Popen[bytes]] = []


class Training:
    """A training in a process of its own, that logs until it is ended."""

    def __init__(self, folder: Path, mode: str, *flags: str, inside: tuple[str, ...] = ()) -> None:
        self.folder = folder / "bench"
        self._facts = folder / "facts.json"
        self.process = subprocess.Popen(
            [
                *inside,
                sys.executable,
                "-m",
                "benchmarks.helper_faults",
                "training",
                mode,
                str(folder),
                *flags,
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _started.append(self.process)

    def wait_for_steps(self, steps: int = _STEPS) -> dict[str, Any]:
        """Wait until so many steps are logged; return what the training said about itself."""
        _wait_until(
            lambda: self.process.poll() is not None or _steps_in(self.folder / METRICS_JSONL) >= steps
        )
        with contextlib.suppress(OSError, ValueError):
            facts: dict[str, Any] = json.loads(self._facts.read_text(encoding="utf-8"))
            return facts
        return {}

    def what_is_left(self) -> str:
        """Return what the table and the findings have, against what a repair finds."""
        table, records = _rows_in(self.folder / METRICS_CSV), _steps_in(self.folder / METRICS_JSONL)
        findings = _findings_in(self.folder)
        telemetry = shutil.which("telemetry", path=str(Path(sys.executable).parent)) or "telemetry"
        subprocess.run([telemetry, "repair", str(self.folder)], check=False, capture_output=True)
        logged = _steps_in(self.folder / METRICS_JSONL)
        if _rows_in(self.folder / METRICS_CSV) != logged:
            return f"table incomplete even after a repair ({_rows_in(self.folder / METRICS_CSV)} of {logged})"
        missing = "complete" if table == logged else f"{logged - table} of {logged} rows missing"
        if table == records < logged:
            missing += " (all in the journal alone)"
        return f"table {missing}, NaN {'reported' if findings else 'not reported'}"


def build(options: Options) -> Report:
    """Try everything, both ways."""
    del options
    rows = []
    for title, trial in _TRIALS.items():
        say(f"helper process: {title}")
        found = []
        for mode in (THREADS, HELPER):
            with _folder() as folder, _none_left():
                found.append(trial(folder, mode))
        rows.append([title, *found])
    return Report(
        name="helper_faults",
        title="A helper process for the table and the detectors, against threads: what was tried",
        columns=["what was done", "threads (defaults)", "helper process"],
        rows=rows,
        figures={row[0]: {THREADS: row[1], HELPER: row[2]} for row in rows},
        notes=["missing rows are counted before `telemetry repair`, which writes all of them in each case"],
    )


def _training_killed(folder: Path, mode: str) -> str:
    training = Training(folder, mode)
    facts = training.wait_for_steps()
    training.process.kill()
    training.process.wait()
    return f"{training.what_is_left()}{_ending(facts)}" if mode == THREADS else _after_helper(training, facts)


def _killed_at_once(folder: Path, mode: str) -> str:
    """Kill the training and everything that belongs to it, as a job that is out of time or memory."""
    training = Training(folder, mode)
    facts = training.wait_for_steps()
    training.process.kill()
    _signal(facts.get("helper"), signal.SIGKILL)
    training.process.wait()
    return training.what_is_left()


def _first_process_killed(folder: Path, mode: str) -> str:
    """Kill a training that is the first process of its container."""
    if not _can("unshare", "--pid", "--fork", "--mount-proc", "true"):
        return "not tried"
    training = Training(folder, mode, inside=("unshare", "--pid", "--fork", "--mount-proc"))
    training.wait_for_steps()
    inside = psutil.Process(training.process.pid).children()
    everything = psutil.Process(training.process.pid).children(recursive=True)
    inside[0].kill()
    training.process.wait()
    _, alive = psutil.wait_procs(everything, timeout=5.0)
    return f"{training.what_is_left()}{_how_many_live(mode, len(alive))}"


def _helper_killed(folder: Path, mode: str) -> str:
    if mode == THREADS:
        return "there is no helper"
    training = Training(folder, mode)
    facts = training.wait_for_steps()
    _signal(facts["helper"], signal.SIGKILL)
    training.wait_for_steps(2 * _STEPS)
    training.process.send_signal(signal.SIGINT)
    status = training.process.wait(_LONGEST_WAIT_S)
    return f"training continues and ends with {status}; {training.what_is_left()}"


def _interrupted(folder: Path, mode: str) -> str:
    return _signal_to_group(folder, mode, signal.SIGINT)


def _interrupted_in_one_group(folder: Path, mode: str) -> str:
    return _signal_to_group(folder, mode, signal.SIGINT, "same_session")


def _terminated(folder: Path, mode: str) -> str:
    """Send SIGTERM to every process of the job, wherever its session is."""
    training = Training(folder, mode)
    facts = training.wait_for_steps()
    _signal(facts.get("helper"), signal.SIGTERM)
    training.process.terminate()
    training.process.wait(_LONGEST_WAIT_S)
    return training.what_is_left()


def _forked(folder: Path, mode: str) -> str:
    return _with_forked_process(folder, mode, "fork")


def _forked_by_pipe(folder: Path, mode: str) -> str:
    return _with_forked_process(folder, mode, "fork", "only_pipe")


def _worker(folder: Path, mode: str) -> str:
    return _with_forked_process(folder, mode, "worker")


def _waits_for_children(folder: Path, mode: str) -> str:
    training = Training(folder, mode, "wait")
    facts = training.wait_for_steps()
    training.process.send_signal(signal.SIGINT)
    training.process.wait(_LONGEST_WAIT_S)
    return str(facts.get("wait", "nothing said"))


def _limited(folder: Path, mode: str) -> str:
    """Allow the training a few threads and processes, as a container with a pid limit does."""
    group = _PIDS / f"telemetry-trial-{os.getpid()}"
    try:
        group.mkdir()
        (group / "pids.max").write_text(str(_PID_LIMIT), encoding="ascii")
    except OSError:
        return "not tried"
    try:
        return _in_shell(folder, mode, f"echo $$ > {group}/cgroup.procs")
    finally:
        group.rmdir()


def _read_only_tmp(folder: Path, mode: str) -> str:
    return _in_shell(folder, mode, "mount -t tmpfs -o ro none /tmp", "unshare", "--mount")


def _no_proc(folder: Path, mode: str) -> str:
    return _in_shell(folder, mode, "mount -t tmpfs -o ro none /proc", "unshare", "--mount")


_TRIALS: Final[dict[str, Callable[[Path, str], str]]] = {
    "SIGKILL of the training": _training_killed,
    "SIGKILL of all processes of the job": _killed_at_once,
    "SIGKILL of a training that is process 1 of its container": _first_process_killed,
    "SIGKILL of the helper": _helper_killed,
    "Ctrl-C to the process group, helper in a session of its own": _interrupted,
    "the same, helper in the session of the training": _interrupted_in_one_group,
    "SIGTERM to all processes of the job": _terminated,
    "os.fork, then SIGKILL of the training": _forked,
    "the same, helper that trusts the pipe alone": _forked_by_pipe,
    "a multiprocessing worker (fork), then SIGKILL of the training": _worker,
    "a training script that calls os.wait()": _waits_for_children,
    f"at most {_PID_LIMIT} threads and processes": _limited,
    "read-only /tmp": _read_only_tmp,
    "no /proc": _no_proc,
}


def _signal_to_group(folder: Path, mode: str, number: signal.Signals, *flags: str) -> str:
    training = Training(folder, mode, *flags)
    facts = training.wait_for_steps()
    os.killpg(training.process.pid, number)
    training.process.wait(_LONGEST_WAIT_S)
    return f"{training.what_is_left()}{_ending(facts)}"


def _with_forked_process(folder: Path, mode: str, *flags: str) -> str:
    training = Training(folder, mode, *flags)
    facts = training.wait_for_steps()
    training.process.kill()
    training.process.wait()
    try:
        return training.what_is_left() if mode == THREADS else _after_helper(training, facts)
    finally:
        _signal(facts.get("forked"), signal.SIGKILL)
        _signal(facts.get("helper"), signal.SIGKILL)


def _in_shell(folder: Path, mode: str, first: str, *inside: str) -> str:
    if inside and not _can(*inside, "true"):
        return "not tried"
    training = Training(folder, mode, inside=(*inside, "sh", "-c", f'{first}; exec "$@"', "sh"))
    facts = training.wait_for_steps()
    training.process.send_signal(signal.SIGINT)
    status = training.process.wait(_LONGEST_WAIT_S)
    trouble = f"helper not started: {facts['trouble']}; " if "trouble" in facts else ""
    return f"{trouble}training ends with {status}; {training.what_is_left()}"


def _after_helper(training: Training, facts: dict[str, Any]) -> str:
    killed = time.monotonic()
    _wait_until(lambda: not _lives(facts["helper"]), 5.0)
    if _lives(facts["helper"]):
        return f"helper lives on after {time.monotonic() - killed:.0f} s; {training.what_is_left()}"
    return f"helper ends after {time.monotonic() - killed:.1f} s; {training.what_is_left()}"


def _ending(facts: dict[str, Any]) -> str:
    if "helper" not in facts:
        return ""
    return ", helper lives on" if _lives(facts["helper"]) else ", helper has ended"


def _how_many_live(mode: str, alive: int) -> str:
    return "" if mode == THREADS else f", {alive} processes live on"


def _can(*command: str) -> bool:
    return (
        bool(shutil.which(command[0]))
        and subprocess.run(command, check=False, capture_output=True).returncode == 0
    )


def _signal(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_until(is_so: Callable[[], bool], longest_s: float = _LONGEST_WAIT_S) -> None:
    deadline = time.monotonic() + longest_s
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    # One of the trials takes /tmp away.
    with tempfile.TemporaryDirectory(prefix="helper-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextlib.contextmanager
def _none_left() -> Iterator[None]:
    try:
        yield
    finally:
        while _started:
            process = _started.pop()
            process.kill()
            process.wait()


def _lines_of(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError:
        return []


def _steps_in(records: Path) -> int:
    return sum(line.startswith(b'{"event":"step"') for line in _lines_of(records))


def _rows_in(table: Path) -> int:
    return sum(line.startswith(b"step,") or b",step," in line for line in _lines_of(table))


def _findings_in(folder: Path) -> int:
    found = [line for line in _lines_of(folder / METRICS_JSONL) if line.startswith(b'{"event":"finding"')]
    return sum(
        b"non_finite" in line or b"nan" in line.lower() for line in [*found, *_lines_of(folder / FINDINGS)]
    )


def train(mode: str, folder: Path, *flags: str) -> None:
    """Log until interrupted, and say who takes part."""
    # A shell's job in the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    facts: dict[str, Any] = {}
    run = Run(WITHOUT if mode == HELPER else mode, folder)
    if mode == HELPER:
        try:
            run.helper = Helper(
                run.folder, own_session="same_session" not in flags, only_pipe="only_pipe" in flags
            )
            facts["helper"] = run.helper.process.pid
        except OSError as error:
            facts["trouble"] = type(error).__name__
    if "fork" in flags:
        facts["forked"] = os.fork()
        if facts["forked"] == 0:
            time.sleep(2 * _LONGEST_WAIT_S)
            os._exit(0)
    if "worker" in flags:
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(2 * _LONGEST_WAIT_S,))
        worker.start()
        facts["forked"] = worker.pid
    if "wait" in flags:
        try:
            os.waitpid(-1, os.WNOHANG)
            facts["wait"] = "waits as long as the helper lives"
        except ChildProcessError:
            facts["wait"] = "returns at once: there are no children"
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    try:
        step = 0
        while True:
            step += 1
            if step == _NAN_AT:
                run.telemetry.log_step(step, train_loss=math.nan)
            else:
                run.log(step)
            time.sleep(0.005)
    except KeyboardInterrupt:
        run.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["training"]:
        train(sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
    else:
        chosen = parse()
        report = build(chosen)
        report.show()
        if chosen.is_full:
            report.save(quotable=False)
