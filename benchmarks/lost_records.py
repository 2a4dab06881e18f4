"""Which acknowledged records are lost: by a SIGKILL, while the disk hangs, and while it is full."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.child import ROOT, measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import ALL, BARE, OURS, PEERS
from benchmarks.on_disk import steps_on_disk
from benchmarks.report import Claim, Report

_FILE_SYSTEM: Final = ROOT / "tests" / "faults" / "faulty_file_system.py"
_FAULTS: Final = {
    "hung": [{"op": "any", "do": "hang"}],
    "full": [{"op": "write", "do": "ENOSPC"}, {"op": "open", "do": "ENOSPC"}],
}
_UNTIL_END_S: Final = 60.0

# Shared from the logging process to the watching one: the last step, the longest call, then one byte per step.
_HEAD: Final = struct.Struct("<qd")
_PLACES: Final = 100_000
_RETURNED, _RAISED = 1, 2


def build(options: Options) -> Report:
    """Kill each logger after about 5000 records at 1 kHz; then a step every 5 ms, while the disk hangs or is full."""
    records, rounds, seconds = (1000, 1, 2.0) if options.quick else (5000, 3, 5.0)
    contenders, notes = options.choose((BARE, OURS, *PEERS))
    killed: dict[str, list[int]] = {contender.name: [] for contender in contenders}
    figures: dict[str, dict[str, Any]] = {"killed": killed}
    # Loggers that write on a timer lose more or less depending on the time, so it varies between rounds.
    times = random.Random(5)
    for number in range(rounds):
        until_kill = records + times.randint(-records // 10, records // 10)
        for contender in contenders:
            say(f"kill, round {number + 1} of {rounds}: {contender.title}")
            killed[contender.name].append(measure_in_child(lost_after_kill, contender.name, until_kill))
    # A file system that fails on request.
    has_faults = os.access("/dev/fuse", os.R_OK | os.W_OK) and os.geteuid() == 0
    for fault in _FAULTS if has_faults else ():
        figures[fault] = {}
        for contender in contenders:
            say(f"disk {fault}: {contender.title}")
            found = measure_in_child(through, fault, contender.name, seconds)
            figures[fault][contender.name] = found
    claims = []
    if OURS.name in killed:
        lost = {"a SIGKILL": sum(killed[OURS.name])}
        lost |= {f"a {fault} disk": figures[fault][OURS.name]["lost"] for fault in [*figures][1:]}
        claims = [
            Claim(text=f"records lost by {what}", measured=number, limit=0, unit="")
            for what, number in lost.items()
        ]
    return Report(
        name="lost_records",
        title=f"Acknowledged records that are not on disk: after a SIGKILL (about {records} at 1 kHz), and after "
        f"{seconds:g} s of a disk that hangs or is full (one every 5 ms)",
        columns=[
            "logger",
            "killed: mean",
            "worst",
            *(cell for fault in [*figures][1:] for cell in _columns(fault)),
        ],
        rows=[
            [
                contender.title,
                f"{statistics.fmean(killed[contender.name]):.0f}",
                f"{max(killed[contender.name])}",
                *(cell for fault in [*figures][1:] for cell in _cells(figures[fault][contender.name])),
            ]
            for contender in contenders
        ],
        figures=figures,
        claims=claims,
        notes=[*notes, *([] if has_faults else ["Disks: not measured, it needs root and /dev/fuse"])],
    )


def lost_after_kill(folder: Path, name: str, records: int) -> int:
    """Return how many of `records` acknowledged steps are missing after contender `name` was killed."""
    logs = folder / "logs"
    logs.mkdir()
    with _victim(folder, name, logs, 0.001) as (child, noted):
        _wait_for(lambda: _last_step(noted) >= records, child)
        child.send_signal(signal.SIGKILL)
        child.wait()
        returned = _steps(noted, _RETURNED)
    # A helper process that outlives the victim may still be writing.
    time.sleep(2.0)
    return len(returned - steps_on_disk(name, logs))


def through(folder: Path, fault: str, name: str, seconds: float) -> dict[str, Any]:
    """Return what contender `name` made of `seconds` of a fault of the disk."""
    with (
        _faulty_disk(folder) as (shown, mounted, rules),
        _victim(folder, name, mounted, 0.005) as (child, noted),
    ):
        _wait_for(lambda: _last_step(noted) >= 200, child)
        _set(rules, _FAULTS[fault])
        time.sleep(seconds)
        _set(rules, [])
        time.sleep(3.0)
        (folder / "stop").touch()
        try:
            end = f"exit {child.wait(_UNTIL_END_S)}"
        except subprocess.TimeoutExpired:
            end = "none"
            child.kill()
            child.wait()
        # A helper process that outlives it may still be writing.
        time.sleep(2.0)
        returned = _steps(noted, _RETURNED)
        try:
            lost = len(returned - steps_on_disk(name, shown))
        except Exception as error:  # noqa: BLE001 - whatever a reader says of a file that a fault broke
            lost, end = len(returned), f"{end}, unreadable: {type(error).__name__}"
        return {
            "longest_ms": _HEAD.unpack_from(noted.read_bytes())[1] * 1e3,
            "raised": len(_steps(noted, _RAISED)),
            "returned": len(returned),
            "lost": lost,
            "end": end,
        }


def log_until_stopped(name: str, logs: Path, noted: Path, pause_s: float) -> None:
    """Log a step every so many seconds until a file `stop` exists, and note what became of each call."""
    stop = noted.with_name("stop")
    with open(noted, "r+b") as file, mmap.mmap(file.fileno(), 0) as notes:
        logger = ALL[name].open(logs)
        longest, due = 0.0, time.perf_counter()
        for step in range(1, _PLACES):
            if step % 10 == 0 and stop.exists():
                break
            began = time.perf_counter()
            try:
                logger.log(step)
                outcome = _RETURNED
            except Exception:  # noqa: BLE001 - whatever it is, it would have ended a training
                outcome = _RAISED
            longest = max(longest, time.perf_counter() - began)
            notes[_HEAD.size + step] = outcome
            notes[: _HEAD.size] = _HEAD.pack(step, longest)
            due = max(due + pause_s, time.perf_counter() - pause_s)
            time.sleep(max(0.0, due - time.perf_counter()))
        logger.close()


@contextmanager
def _victim(
    folder: Path, name: str, logs: Path, pause_s: float
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    noted = folder / "noted"
    noted.write_bytes(bytes(_HEAD.size + _PLACES))
    arguments = ["victim", name, str(logs), str(noted), str(pause_s)]
    command = [sys.executable, "-m", "benchmarks.lost_records", *arguments]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield child, noted
    finally:
        child.kill()
        child.wait()


@contextmanager
def _faulty_disk(folder: Path) -> Iterator[tuple[Path, Path, Path]]:
    shown, mounted, rules = folder / "shown", folder / "mounted", folder / "rules"
    shown.mkdir()
    mounted.mkdir()
    server = subprocess.Popen([sys.executable, _FILE_SYSTEM, shown, mounted, rules, "mapped"])
    try:
        _wait_for(mounted.is_mount, server)
        yield shown, mounted, rules
    finally:
        rules.unlink(missing_ok=True)
        subprocess.run(["umount", "-l", str(mounted)], check=False)
        server.kill()
        server.wait()


def _wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"the process ended by itself with {process.returncode}")
        time.sleep(0.001)


def _set(rules: Path, wanted: list[dict[str, str]]) -> None:
    written = rules.with_suffix(".new")
    written.write_text(json.dumps(wanted), encoding="utf-8")
    os.replace(written, rules)


def _last_step(noted: Path) -> int:
    with open(noted, "rb") as file:
        return int(_HEAD.unpack(file.read(_HEAD.size))[0])


def _steps(noted: Path, outcome: int) -> set[int]:
    calls = noted.read_bytes()[_HEAD.size :]
    return {step for step, found in enumerate(calls) if found == outcome}


def _columns(fault: str) -> list[str]:
    return [f"{fault}: longest call ms", "calls that raised", "lost", "end"]


def _cells(found: dict[str, Any]) -> list[str]:
    lost = f"{found['lost']} of {found['returned']}"
    return [f"{found['longest_ms']:.1f}", f"{found['raised']}", lost, found["end"]]


if __name__ == "__main__":
    if sys.argv[1:2] == ["victim"]:
        log_until_stopped(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), float(sys.argv[5]))
        sys.exit(0)
    run_alone(build)
