"""A training and its records while the disk hangs, and while it is full."""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.child import ROOT, measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import ALL, BARE, OURS, PEERS
from benchmarks.on_disk import steps_on_disk
from benchmarks.report import Claim, Report

_FILE_SYSTEM = ROOT / "tests" / "faults" / "faulty_file_system.py"
_FAULTS: dict[str, list[dict[str, str]]] = {
    "hung": [{"op": "any", "do": "hang"}],
    "full": [{"op": "write", "do": "ENOSPC"}, {"op": "open", "do": "ENOSPC"}],
}
_STEP_S = 0.005
_UNTIL_END_S = 60.0

# Shared from the logging process to the watching one: the last step, the longest call, then one byte per step.
_HEAD = struct.Struct("<qd")
_PLACES = 100_000
_RETURNED, _RAISED = 1, 2


def build(options: Options) -> Report:
    """Log a step every 5 ms; for some seconds the disk hangs or is full."""
    why_not = _why_not()
    seconds = 2.0 if options.quick else 10.0
    contenders, notes = options.choose((BARE, OURS, *PEERS))
    figures: dict[str, dict[str, Any]] = {}
    for fault in () if why_not else _FAULTS:
        figures[fault] = {}
        for contender in contenders:
            say(f"disk {fault}: {contender.title}")
            figures[fault][contender.name] = measure_in_child(through, fault, contender.name, seconds)

    rows = [
        [fault, contender.title, *_cells(figures[fault][contender.name])]
        for fault in figures
        for contender in contenders
    ]
    return Report(
        name="under_fault",
        title=f"A step every 5 ms, {seconds:g} s of them on a hung or full disk",
        columns=["disk", "logger", "steps meanwhile", "longest call ms", "calls that raised", "lost", "end"],
        rows=rows,
        figures=figures,
        claims=[
            claim
            for fault in figures
            if OURS.name in figures[fault]
            for claim in _claims(fault, figures[fault][OURS.name])
        ],
        notes=[*notes, *([f"Not measured: {why_not}"] if why_not else [])],
    )


def through(folder: Path, fault: str, name: str, seconds: float) -> dict[str, Any]:
    """Return the results of contender `name` for `seconds` of `fault`."""
    noted = folder / "noted"
    noted.write_bytes(bytes(_HEAD.size + _PLACES))
    stop = folder / "stop"
    with _faulty_disk(folder) as (shown, mounted, rules):
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.under_fault", "victim", name]
            + [str(path) for path in (mounted, noted, stop)],
            stdout=subprocess.DEVNULL,
        )
        _wait_for(lambda: _last_step(noted) >= 200, child)
        before = _last_step(noted)
        _set(rules, _FAULTS[fault])
        time.sleep(seconds)
        meanwhile = _last_step(noted) - before
        _set(rules, [])
        time.sleep(3.0)
        stop.touch()
        try:
            end = f"exit {child.wait(_UNTIL_END_S)}"
        except subprocess.TimeoutExpired:
            end = "none"
            child.kill()
            child.wait()
        # A helper process that outlives it may still be writing.
        time.sleep(2.0)
        data = noted.read_bytes()
        longest = _HEAD.unpack_from(data)[1]
        calls = data[_HEAD.size :]
        returned = {step for step, outcome in enumerate(calls) if outcome == _RETURNED}
        try:
            lost = len(returned - steps_on_disk(name, shown))
        except Exception as error:  # noqa: BLE001 - whatever a reader says of a file that a fault broke
            lost, end = len(returned), f"{end}, unreadable: {type(error).__name__}"
    return {
        "seconds": seconds,
        "steps_meanwhile": meanwhile,
        "longest_ms": longest * 1e3,
        "raised": calls.count(_RAISED),
        "returned": len(returned),
        "lost": lost,
        "end": end,
    }


def log_until_stopped(name: str, logs: Path, noted: Path, stop: Path) -> None:
    """Log a step every 5 ms until `stop` exists, and record each call."""
    with open(noted, "r+b") as file, mmap.mmap(file.fileno(), 0) as notes:
        logger = ALL[name].open(logs)
        longest = 0.0
        step = 0
        while step < _PLACES - 1 and not stop.exists():
            step += 1
            began = time.perf_counter()
            try:
                logger.log(step)
                outcome = _RETURNED
            except Exception:  # noqa: BLE001 - whatever it is, it would have ended a training
                outcome = _RAISED
            longest = max(longest, time.perf_counter() - began)
            notes[_HEAD.size + step] = outcome
            notes[: _HEAD.size] = _HEAD.pack(step, longest)
            time.sleep(_STEP_S)
        logger.close()


@contextmanager
def _faulty_disk(folder: Path) -> Iterator[tuple[Path, Path, Path]]:
    shown, mounted, rules = folder / "shown", folder / "mounted", folder / "rules"
    shown.mkdir()
    mounted.mkdir()
    server = subprocess.Popen(
        [sys.executable, str(_FILE_SYSTEM)] + [str(path) for path in (shown, mounted, rules)] + ["mapped"]
    )
    try:
        _wait_for(mounted.is_mount, server)
        yield shown, mounted, rules
    finally:
        rules.unlink(missing_ok=True)
        subprocess.run(["umount", "-l", str(mounted)], check=False)
        server.kill()
        server.wait()


def _why_not() -> str:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
        return "a file system that fails on request needs root and /dev/fuse"
    return ""


def _wait_for(condition: Any, process: subprocess.Popen[bytes]) -> None:
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"the process ended by itself with {process.returncode}")
        time.sleep(0.01)


def _set(rules: Path, wanted: list[dict[str, str]]) -> None:
    written = rules.with_suffix(".new")
    written.write_text(json.dumps(wanted), encoding="utf-8")
    os.replace(written, rules)


def _last_step(noted: Path) -> int:
    with open(noted, "rb") as file:
        return int(_HEAD.unpack(file.read(_HEAD.size))[0])


def _cells(found: dict[str, Any]) -> list[str]:
    return [
        f"{found['steps_meanwhile']}",
        f"{found['longest_ms']:.1f}",
        f"{found['raised']}",
        f"{found['lost']} of {found['returned']}",
        found["end"],
    ]


def _claims(fault: str, ours: dict[str, Any]) -> list[Claim]:
    return [
        Claim(text=f"records lost by a {fault} disk", measured=ours["lost"], limit=0, unit=""),
        Claim(text=f"calls that raised on a {fault} disk", measured=ours["raised"], limit=0, unit=""),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["victim"]:
        log_until_stopped(sys.argv[2], *map(Path, sys.argv[3:6]))
        sys.exit(0)
    run_alone(build)
