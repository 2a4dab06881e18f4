"""How many acknowledged records a SIGKILL loses."""

from __future__ import annotations

import mmap
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import ALL, BARE, OURS, PEERS
from benchmarks.on_disk import steps_on_disk
from benchmarks.report import Claim, Report


def build(options: Options) -> Report:
    """Log at 1 kHz, kill the process after about 5000 acknowledged records, and count what is on disk."""
    records, rounds = (1000, 1) if options.quick else (5000, 5)
    contenders, notes = options.choose((BARE, OURS, *PEERS))
    figures: dict[str, list[int]] = {contender.name: [] for contender in contenders}
    # Loggers that write on a timer lose more or less depending on the time, so it varies between rounds.
    times = random.Random(5)
    for number in range(rounds):
        until_kill = records + times.randint(-records // 10, records // 10)
        for contender in contenders:
            say(f"kill, round {number + 1} of {rounds}: {contender.title}")
            figures[contender.name].append(measure_in_child(lost_after_kill, contender.name, until_kill))

    ours = figures.get(OURS.name)
    return Report(
        name="kill_loss",
        title=f"About {records} records at 1 kHz, then SIGKILL: acknowledged records that are not on disk",
        columns=["logger", "median", "worst", "each round"],
        rows=[
            [contender.title, f"{statistics.median(lost):g}", str(max(lost)), " ".join(map(str, lost))]
            for contender in contenders
            for lost in [figures[contender.name]]
        ],
        figures=figures,
        claims=[Claim(text="acknowledged records lost", measured=sum(ours), limit=0, unit="")]
        if ours
        else [],
        notes=notes,
    )


def lost_after_kill(folder: Path, name: str, records: int) -> int:
    """Return how many of `records` acknowledged steps are missing after contender `name` was killed."""
    acknowledged = folder / "acknowledged"
    acknowledged.write_bytes(struct.pack("<q", 0))
    logs = folder / "logs"
    logs.mkdir()
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.kill_loss",
            "victim",
            name,
            str(logs),
            str(acknowledged),
            str(records),
        ],
        stdout=subprocess.DEVNULL,
    )
    while _number_in(acknowledged) < records:
        if child.poll() is not None:
            raise RuntimeError(f"the process to kill ended by itself with {child.returncode}")
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()
    # A helper process that outlives the victim may still be writing.
    time.sleep(2.0)
    return len(set(range(1, records + 1)) - steps_on_disk(name, logs))


def log_until_killed(name: str, logs: Path, acknowledged: Path, records: int) -> None:
    """Log `records` steps at 1 kHz, note each acknowledged one, then wait to be killed."""
    with open(acknowledged, "r+b") as file, mmap.mmap(file.fileno(), 8) as noted:
        logger = ALL[name].open(logs)
        due = time.perf_counter()
        for step in range(1, records + 1):
            logger.log(step)
            noted[:] = struct.pack("<q", step)
            due += 0.001
            time.sleep(max(0.0, due - time.perf_counter()))
        time.sleep(60)


def _number_in(path: Path) -> int:
    return int(struct.unpack("<q", path.read_bytes())[0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["victim"]:
        log_until_killed(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
        os._exit(0)
    run_alone(build)
