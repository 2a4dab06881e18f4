"""A helper process instead of threads for the table and the detectors: what each takes from a training.

It is a trial, not part of `make bench`: `python -m benchmarks.helper_process`, about three minutes. What happens at
a kill, a fork or in a container is in `benchmarks.helper_faults`.
"""

from __future__ import annotations

import mmap
import os
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest import mock

import psutil

from benchmarks.child import measure_in_child
from benchmarks.command import Options, parse, say
from benchmarks.contenders import VALUES
from benchmarks.helper_child import Helper
from benchmarks.paced import work_of
from benchmarks.report import Claim, Report, median_and_quartiles
from toolkit.runfolder.layout import METRICS_CSV

WITHOUT, THREADS, HELPER = "without", "threads", "helper"
_TITLES: Final = {
    WITHOUT: "neither table nor detectors",
    THREADS: "threads (defaults)",
    HELPER: "helper process",
}
_KINDS: Final = {"big": "matrix products", "small": "many small operations"}
_SILENT: Final = ("nothing", "nothing, again")
# A block begins with what the threads and the helper still have to do for the one before: they pause for 0.5 s.
_SETTLING: Final = 100
_PAUSE_S: Final = 0.005
_STEP_US: Final = 5500.0
_MB: Final = 1e6
_GB: Final = 1024**3
_LOSSES: Final = [2.0 + random.Random(7).gauss(0.0, 0.1) for _ in range(1021)]


class Run:
    """A logger with `name`'s way of keeping the table and the findings."""

    def __init__(self, name: str, folder: Path) -> None:
        # Imported here, so that what it costs can be measured.
        from toolkit.telemetry import TelemetryLogger
        from toolkit.telemetry.writing.pipeline import RecordPipeline

        if name == THREADS:
            self.telemetry = TelemetryLogger("bench", log_dir=folder, log_every=1)
        else:
            # No thread reads the records: the helper would collect the configuration and evaluations as well.
            with mock.patch.object(RecordPipeline, "_make_examining", return_value=None):
                self.telemetry = TelemetryLogger(
                    "bench", log_dir=folder, log_every=1, csv=False, diagnostics=False
                )
        run_folder = self.telemetry.run_folder
        assert run_folder is not None
        self.folder = run_folder
        self.helper = Helper(run_folder) if name == HELPER else None

    def log(self, step: int) -> None:
        """Log ten scalars."""
        self.telemetry.log_step(step, **{**VALUES, "train_loss": _LOSSES[step % len(_LOSSES)]})

    def close(self) -> None:
        """End the run, with the table complete."""
        self.telemetry.close()
        if self.helper is not None:
            self.helper.close()


def build(options: Options) -> Report:
    """Measure both in one run."""
    turns, steps = (2, 20) if options.quick else (5, 180)
    figures: dict[str, Any] = {"slowdown": {}, "cpu": {}, "memory": {}, "start": {}}
    for kind, what in _KINDS.items():
        say(f"helper process: slowdown, {what}")
        figures["slowdown"][kind] = _slowdown_summary(
            measure_in_child(time_turns, kind, turns, steps, 10 if options.quick else _SETTLING)
        )
    rounds, paced, burst, seconds = (1, 50, 500, 0.5) if options.quick else (2, 400, 10_000, 1.0)
    for name in _TITLES:
        figures["cpu"][name], figures["memory"][name], figures["start"][name] = [], [], []
    for number in range(rounds):
        for name, title in _TITLES.items():
            say(f"helper process: CPU, memory and start, round {number + 1} of {rounds}: {title}")
            figures["cpu"][name].append(
                {
                    "paced": measure_in_child(cpu_of_records, name, paced, _PAUSE_S),
                    "burst": measure_in_child(cpu_of_records, name, burst, 0.0),
                }
            )
            if number == 0:
                figures["memory"][name].append(measure_in_child(memory_added, name, burst))
            figures["start"][name].append(measure_in_child(time_start, name, seconds))
    say("helper process: starting one in a large process")
    figures["spawn"] = measure_in_child(time_spawn, 0.25 if options.quick else 8.0)
    return _report(figures)


def time_turns(folder: Path, kind: str, turns: int, steps: int, settling: int) -> dict[str, Any]:
    """Return mean and median of a step in each block, the loggers taking turns in one process."""
    work = work_of(kind)
    runs: dict[str, Run | None] = dict.fromkeys(_SILENT)
    for name in _TITLES:
        runs[name] = Run(name, folder / name)
    found: dict[str, dict[str, list[float]]] = {name: {"mean": [], "median": []} for name in runs}
    clock = time.perf_counter
    order = list(runs)
    step = 0
    # Imports, and the first look at packages and devices, are the start's.
    time.sleep(2.0)
    for turn in range(turns + 1):
        # Later positions meet a warmer machine, so the order changes.
        random.Random(turn).shuffle(order)
        for name in order:
            run = runs[name]
            took = []
            # The first turn only touches memory for the first time.
            for _ in range(settling + (steps if turn > 0 else 0)):
                step += 1
                before = clock()
                work()
                if run is not None:
                    run.log(step)
                took.append(clock() - before)
            if turn > 0:
                found[name]["mean"].append(statistics.fmean(took[settling:]))
                found[name]["median"].append(statistics.median(took[settling:]))
    for run in runs.values():
        if run is not None:
            run.close()
    return found


def cpu_of_records(folder: Path, name: str, records: int, pause_s: float) -> dict[str, float]:
    """Return the processor seconds per record of the caller, the other threads and the helper, until all is closed."""
    run = Run(name, folder)
    helper = None if run.helper is None else run.helper.process.pid
    for step in range(20):
        run.log(step)
    # What the start costs is measured on its own.
    time.sleep(1.5)
    while name != WITHOUT and not _has_a_row(run.folder / METRICS_CSV):
        time.sleep(0.1)
    helper_before = 0.0 if helper is None else _cpu_of(helper)
    own_before, caller_before = time.process_time(), time.thread_time()
    due = time.perf_counter()
    for step in range(20, 20 + records):
        run.log(step)
        if pause_s:
            due += pause_s
            time.sleep(max(0.0, due - time.perf_counter()))
    caller = time.thread_time() - caller_before
    run.telemetry.close()
    own = time.process_time() - own_before
    in_helper = 0.0
    if run.helper is not None:
        # The whole life of an ended child is known to the microsecond; what it took before is not part of it.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run.helper.close()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        in_helper = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime - helper_before
    return {
        "caller_us": caller / records * 1e6,
        "threads_us": (own - caller) / records * 1e6,
        "helper_us": in_helper / records * 1e6,
        "all_us": (own + in_helper) / records * 1e6,
    }


def memory_added(folder: Path, name: str, burst: int) -> dict[str, float]:
    """Return the MB added to this process and in the helper, after 200 steps and at the peak of a tight loop."""
    process = psutil.Process()
    before = process.memory_full_info()
    run = Run(name, folder)
    for step in range(200):
        run.log(step)
        time.sleep(_PAUSE_S)
    time.sleep(1.0)
    after = process.memory_full_info()
    found = {"rss_mb": (after.rss - before.rss) / _MB, "pss_mb": (after.pss - before.pss) / _MB}
    helper = None if run.helper is None else psutil.Process(run.helper.process.pid)
    if helper is not None:
        info = helper.memory_full_info()
        found |= {"helper_rss_mb": info.rss / _MB, "helper_pss_mb": info.pss / _MB}
    for step in range(200, 200 + burst):
        run.log(step)
    # While they work through it.
    time.sleep(0.5)
    found["peak_mb"] = (_peak_of(process.pid) - before.rss) / _MB
    if helper is not None:
        found["helper_peak_mb"] = _peak_of(helper.pid) / _MB
    run.close()
    return found


def time_start(folder: Path, name: str, seconds: float) -> dict[str, float]:
    """Return how long a logger takes to be there and until its first row, and the processor time of `seconds`."""
    import toolkit.telemetry

    # A logger that is not imported when it is first used; `import_cost` measures importing.
    _ = toolkit.telemetry.TelemetryLogger
    process = psutil.Process()
    cpu_before, before = time.process_time(), time.perf_counter()
    run = Run(name, folder)
    constructed = time.perf_counter() - before
    run.log(1)
    first_row = None
    while (now := time.perf_counter() - before) < seconds or (
        name != WITHOUT and first_row is None and now < 30.0
    ):
        if first_row is None and _has_a_row(run.folder / METRICS_CSV):
            first_row = now
        time.sleep(0.005)
    found = {
        "constructed_ms": constructed * 1e3,
        "first_row_ms": (first_row or 0.0) * 1e3,
        "own_cpu_ms": (time.process_time() - cpu_before) * 1e3,
        "threads": threading.active_count() - 1,
        "processes": len(process.children(recursive=True)),
    }
    found["helper_cpu_ms"] = 0.0 if run.helper is None else _cpu_of(run.helper.process.pid) * 1e3
    run.close()
    return found


def time_spawn(folder: Path, gigabytes: float) -> dict[str, float]:
    """Return the milliseconds of starting a process, and of a bare fork, without and with much memory in use."""
    del folder
    gigabytes = min(gigabytes, psutil.virtual_memory().available / 2 / _GB)
    found = {"gigabytes": gigabytes, "small_ms": _fastest_spawn(), "small_fork_ms": _fastest_fork()}
    memory = mmap.mmap(-1, int(gigabytes * _GB), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block = b"\1" * (1 << 24)
    for at in range(0, len(memory) - len(block) + 1, len(block)):
        memory[at : at + len(block)] = block
    found |= {"large_ms": _fastest_spawn(), "large_fork_ms": _fastest_fork()}
    memory.close()
    return found


def _fastest_spawn() -> float:
    def spawn() -> None:
        started.append(subprocess.Popen([sys.executable, "-c", ""], start_new_session=True))

    started: list[subprocess.Popen[bytes]] = []
    return _fastest(spawn, lambda: started.pop().wait())


def _fastest_fork() -> float:
    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        forked.append(pid)

    forked: list[int] = []
    return _fastest(fork, lambda: os.waitpid(forked.pop(), 0))


def _fastest(start: Callable[[], None], end: Callable[[], Any]) -> float:
    took = []
    for _ in range(5):
        before = time.perf_counter()
        start()
        took.append(time.perf_counter() - before)
        end()
    return min(took) * 1e3


def _cpu_of(pid: int) -> float:
    """Return the processor seconds of a process with one thread."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except OSError:
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)


def _peak_of(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _has_a_row(table: Path) -> bool:
    try:
        return table.read_bytes().count(b"\n") >= 2
    except OSError:
        return False


def _slowdown_summary(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Compare each block with the silent blocks of its turn."""
    summary: dict[str, dict[str, float]] = {}
    for name, took in found.items():
        if name == _SILENT[0]:
            continue
        summary[name] = {}
        for which in ("mean", "median"):
            silent = found[_SILENT[0]][which]
            if name != _SILENT[1]:
                silent = [
                    (one + other) / 2 for one, other in zip(silent, found[_SILENT[1]][which], strict=True)
                ]
            ratios = [own / none - 1 for own, none in zip(took[which], silent, strict=True)]
            middle, low, high = median_and_quartiles(ratios)
            summary[name] |= {which: middle, f"{which}_q1": low, f"{which}_q3": high}
    return summary


def _report(figures: dict[str, Any]) -> Report:
    def lowest(part: str, *keys: str) -> Callable[[str], float]:
        def value(name: str) -> float:
            values = []
            for found in figures[part][name]:
                at: Any = found
                for key in keys:
                    at = at.get(key, 0.0)
                values.append(at)
            return float(min(values))

        return value

    rows: list[list[str]] = []

    def add(what: str, value: Callable[[str], float], form: str) -> None:
        rows.append([what, *(f"{value(name):{form}}" for name in _TITLES)])

    for kind, what in _KINDS.items():
        for which in ("mean", "median"):
            found = figures["slowdown"][kind]
            rows.append(
                [
                    f"slowdown of a step, {what}, {which}s",
                    *(_with_quartiles(found[name], which) for name in _TITLES),
                ]
            )
    for pace, what in (("paced", "one every 5 ms"), ("burst", "in a burst")):
        add(f"CPU µs a record, {what}: the calling thread", lowest("cpu", pace, "caller_us"), ".1f")
        add(
            f"CPU µs a record, {what}: other threads of the training process",
            lowest("cpu", pace, "threads_us"),
            ".1f",
        )
        add(f"CPU µs a record, {what}: helper", lowest("cpu", pace, "helper_us"), ".1f")
        add(f"CPU µs a record, {what}: all", lowest("cpu", pace, "all_us"), ".1f")
    rows.append(
        [
            "these other threads, share of a step of 5.5 ms",
            *(f"{lowest('cpu', 'paced', 'threads_us')(name) / _STEP_US:.2%}" for name in _TITLES),
        ]
    )
    add("memory added to the training process, MB", lowest("memory", "rss_mb"), ".1f")
    add("the same, proportional share (PSS)", lowest("memory", "pss_mb"), ".1f")
    add("memory of the helper, MB", lowest("memory", "helper_rss_mb"), ".1f")
    add("the same, proportional share (PSS)", lowest("memory", "helper_pss_mb"), ".1f")
    add("peak added in a tight loop, MB", lowest("memory", "peak_mb"), ".1f")
    add("peak of the helper, MB", lowest("memory", "helper_peak_mb"), ".1f")
    add("`TelemetryLogger()`, helper started, ms", lowest("start", "constructed_ms"), ".1f")
    add("until the first row is in the table, ms", lowest("start", "first_row_ms"), ".0f")
    add("CPU of the start, training process, ms", lowest("start", "own_cpu_ms"), ".0f")
    add("CPU of the start, helper, ms", lowest("start", "helper_cpu_ms"), ".0f")
    add("threads added", lowest("start", "threads"), ".0f")
    add("processes added", lowest("start", "processes"), ".0f")
    return Report(
        name="helper_process",
        title="A helper process for the table and the detectors, against threads",
        columns=["what", *_TITLES.values()],
        rows=rows,
        figures=figures,
        claims=_claims(figures["slowdown"], lowest),
        notes=[
            "slowdown: against blocks without a logger in the same process and turn; median over turns, then quartiles",
            "two equal loops differ by "
            + ", ".join(
                f"{found[_SILENT[1]][which]:+.2%} ({what}, {which}s)"
                for kind, what in _KINDS.items()
                for which in ("mean", "median")
                for found in [figures["slowdown"][kind]]
            ),
            "processor time of background threads slows a loop where both need the interpreter lock or a core",
            "other figures: the lowest of the rounds; memory and start in a process without torch",
            _spawn_sentence(figures["spawn"]),
            f"machine load in the minute before: {os.getloadavg()[0]:.1f}, on {os.cpu_count()} cores",
        ],
    )


def _with_quartiles(found: dict[str, float], which: str) -> str:
    return f"{found[which]:+.2%} ({found[f'{which}_q1']:+.1%} … {found[f'{which}_q3']:+.1%})"


def _spawn_sentence(spawn: dict[str, float]) -> str:
    return (
        f"starting a process takes {spawn['small_ms']:.1f} ms, and {spawn['large_ms']:.1f} ms where "
        f"{spawn['gigabytes']:.1f} GB are in use (a bare fork: {spawn['small_fork_ms']:.1f} and "
        f"{spawn['large_fork_ms']:.1f} ms)"
    )


def _claims(slowdown: dict[str, Any], lowest: Callable[..., Callable[[str], float]]) -> list[Claim]:
    """State what a helper process has to win to become the default."""
    claims = []
    for kind, what in _KINDS.items():
        for which in ("mean", "median"):
            found = slowdown[kind]
            noise = found[_SILENT[1]][f"{which}_q3"] - found[_SILENT[1]][f"{which}_q1"]
            gain = found[THREADS][which] - found[HELPER][which]
            claims.append(
                Claim(
                    text=f"helper slows less than threads, {what}, {which}s",
                    measured=round(gain * 100, 3),
                    limit=0.0,
                    unit=" % of a step",
                    at_least=True,
                    too_noisy=abs(gain) < noise,
                )
            )
    for text, unit, keys in (
        ("helper takes less CPU in all, one record every 5 ms", " µs", ("cpu", "paced", "all_us")),
        ("helper takes less CPU in all, in a burst", " µs", ("cpu", "burst", "all_us")),
        ("the start returns sooner", " ms", ("start", "constructed_ms")),
        ("the first row is there sooner", " ms", ("start", "first_row_ms")),
    ):
        value = lowest(*keys)
        claims.append(Claim(text=text, measured=value(HELPER), limit=value(THREADS), unit=unit))
    own, shared = lowest("memory", "pss_mb"), lowest("memory", "helper_pss_mb")
    claims.append(
        Claim(
            text="helper takes less memory in all (PSS)",
            measured=own(HELPER) + shared(HELPER),
            limit=own(THREADS),
            unit=" MB",
        )
    )
    started, in_helper = lowest("start", "own_cpu_ms"), lowest("start", "helper_cpu_ms")
    claims.append(
        Claim(
            text="the start takes less CPU in all",
            measured=started(HELPER) + in_helper(HELPER),
            limit=started(THREADS),
            unit=" ms",
        )
    )
    return claims


if __name__ == "__main__":
    chosen = parse()
    report = build(chosen)
    report.show()
    if chosen.is_full:
        # Its own file: it is not part of the benchmarks that are run together.
        report.save(quotable=False)
