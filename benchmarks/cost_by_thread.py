"""What each thread of a logger takes from a training loop, in its first ten seconds and after them.

The loop makes steps of 5 to 6 ms and one call after each. A step is made of short pieces of work, with the clock and
the processor time of the loop's thread read around each. From these and the kernel's counters:

- *CPU*: processor time of each thread, divided by the records; helper processes have a row of their own.
- *wake-ups*: how often a thread went to sleep and was woken (`voluntary_ctxt_switches`), each second.
- *held up*: time of a step in which the loop's thread neither ran nor waited for a processor. It wants nothing but to
  run, so it waited for the interpreter lock. This time is divided among the threads that ran meanwhile, by their
  processor time. Under load it grows, too: a thread may lose its processor while it holds the lock.
- *longest hold*: the longest such wait within one piece of work, under the name of the thread that ran most.
- *slowdown*: the call's own processor time and the time held up, in percent of a step without a logger. The measured
  slowdown, mean and median of all steps against those before the logger was opened and after it was closed, is beside
  it: it contains the load of the machine, caches and the clock rate, and needs a quiet machine.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import (
    ALL,
    BARE,
    NO_DIAGNOSTICS,
    NOTHING,
    OURS,
    TENSORBOARD,
    TRACKIO,
    WANDB,
    Logger,
    vary,
)
from benchmarks.cpu_per_record import cpu_of_helpers
from benchmarks.paced import operation_of
from benchmarks.report import Claim, Report

_STEP_S = 0.0055
_PIECES = 20
_LATE_S = 0.0003
"""A piece of work held up for longer is looked at; it takes about as long itself."""
_LOOK_EVERY = 10
"""Steps between two looks for new threads."""
_KINDS = {"big": "matrix products", "small": "many small operations"}
_LOOP = "the call"
_HELPERS = "helper processes"
_NOBODY = "no thread"
_LEAST_CPU_US = 0.3
_LEAST_HOLD_MS = 1.0


def build(options: Options) -> Report:
    """Measure every contender with both kinds of work, each in its own process, one after the other."""
    seconds = (0.5, 1.0, 1.0) if options.quick else (3.0, 10.0, 10.0)
    contenders, notes = options.choose((NOTHING, BARE, OURS, NO_DIAGNOSTICS, TRACKIO, WANDB, TENSORBOARD))
    if not sys.platform.startswith("linux"):
        contenders, notes = [], ["Not measured: it needs the counters of Linux."]
    figures: dict[str, Any] = {}
    rows: list[list[str]] = []
    for kind, what in _KINDS.items():
        for contender in contenders:
            say(f"cost by thread, {what}: {contender.title}")
            found = measure_in_child(measure, contender.name, kind, *seconds)
            figures.setdefault(contender.name, {})[kind] = found
    for contender in contenders:
        for kind, what in _KINDS.items():
            rows += _rows(contender.title, what, figures[contender.name][kind])
    return Report(
        name="cost_by_thread",
        title="What each thread takes from a loop of 5 to 6 ms steps: its first ten seconds / the rest",
        columns=[
            "logger",
            "work",
            "thread",
            "CPU µs a record",
            "wake-ups a second",
            "longest hold ms",
            "slowdown",
            "measured: mean",
            "measured: median",
        ],
        rows=rows,
        figures=figures,
        claims=_claims(figures),
        notes=[
            "slowdown: the call's processor time and what the loop waited for the interpreter lock",
            "measured: all steps, by the clock; only on a quiet machine",
            *notes,
        ],
    )


def measure(
    folder: Path, name: str, kind: str, before_s: float, first_s: float, rest_s: float
) -> dict[str, Any]:
    """Run the loop without a logger, with contender `name` for two periods, and without it again."""
    threads = _Threads()
    loop = _Loop(_piece_of(kind), threads)
    loop.run(before_s / 2, None)
    alone = loop.run(before_s, None)
    opened = time.perf_counter()
    logger = ALL[name].open(folder)
    opened = time.perf_counter() - opened
    first = loop.run(first_s, logger)
    rest = loop.run(rest_s, logger)
    logger.close()
    after = loop.run(before_s, None)
    usual = alone.steps_s + after.steps_s
    return {
        "open_ms": opened * 1e3,
        "step_ms": statistics.median(usual) * 1e3,
        "first": first.figures(usual),
        "rest": rest.figures(usual),
    }


class _Threads:
    """The processor time and the wake-ups of each thread but the loop's."""

    def __init__(self) -> None:
        self._loop = threading.get_native_id()
        self._names: dict[int, str] = {}
        self._clocks: dict[int, int] = {}
        self._ended_ns: dict[str, int] = defaultdict(int)
        self._note_ends()

    def _note_ends(self) -> None:
        """Have each thread of Python's say what it has used when it ends: some live for a millisecond only."""
        ended_ns = self._ended_ns
        run = threading.Thread.run

        def noting(self: threading.Thread) -> None:
            try:
                run(self)
            finally:
                ended_ns[self.name] += time.thread_time_ns()

        threading.Thread.run = noting  # type: ignore[method-assign]

    def look(self) -> None:
        """Look which threads there are."""
        there = {int(name) for name in os.listdir("/proc/self/task")} - {self._loop}
        known = {thread.native_id: thread.name for thread in threading.enumerate()}
        for thread in there - self._clocks.keys():
            # The kernel's number for the processor clock of one thread.
            self._clocks[thread] = (~thread << 3) | 6
        for thread in there:
            self._names[thread] = known.get(thread) or self._names.get(thread) or _name_of(thread)
        for thread in self._clocks.keys() - there:
            del self._clocks[thread]

    def now_ns(self) -> dict[int, int]:
        """Return the processor time of each thread that is alive."""
        found = {}
        for thread, clock in self._clocks.items():
            try:
                found[thread] = time.clock_gettime_ns(clock)
            except OSError:
                continue
        return found

    def name(self, thread: int) -> str:
        """Return the name of a thread, without a number at its end."""
        return _without_number(self._names[thread])

    def totals_ns(self) -> dict[str, int]:
        """Return the processor time of all threads so far, ended ones included, by name."""
        self.look()
        found: dict[str, int] = defaultdict(int)
        for name, spent in self._ended_ns.items():
            found[_without_number(name)] += spent
        for thread, spent in self.now_ns().items():
            found[self.name(thread)] += spent
        return found

    def wakes(self) -> dict[str, int]:
        """Return how often each living thread was woken so far, by name."""
        found: dict[str, int] = defaultdict(int)
        for thread in self._clocks:
            found[self.name(thread)] += _wakes_of(thread)
        found[_LOOP] = _wakes_of(self._loop)
        return found


def _without_number(name: str) -> str:
    return name.rstrip("0123456789").rstrip("-_ (") or name


def _name_of(thread: int) -> str:
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except OSError:
        return "?"


def _wakes_of(thread: int) -> int:
    try:
        text = Path(f"/proc/self/task/{thread}/status").read_text()
    except OSError:
        return 0
    return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


class _Loop:
    """A loop of steps, each of some pieces of work."""

    def __init__(self, piece: Callable[[], None], threads: _Threads) -> None:
        self._piece = piece
        self._threads = threads
        self._waited = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._step = 0

    def run(self, seconds: float, logger: Logger | None) -> _Period:
        """Make steps for `seconds`."""
        clock, cpu, piece, threads = time.perf_counter, time.thread_time, self._piece, self._threads
        found = _Period(cpu_of_helpers(), threads.totals_ns(), threads.wakes())
        began = clock()
        end = began + seconds
        while clock() < end:
            self._step += 1
            vary()
            if self._step % _LOOK_EVERY == 0:
                threads.look()
            ran_before, queued_before = threads.now_ns(), self._queued_s()
            held_longest, held_by = 0.0, ran_before
            start, start_cpu = clock(), cpu()
            at, at_cpu = start, start_cpu
            for _ in range(_PIECES):
                piece()
                now, now_cpu = clock(), cpu()
                held = now - at - (now_cpu - at_cpu)
                if held > held_longest:
                    held_longest = held
                    if held > _LATE_S:
                        held_by = threads.now_ns()
                at, at_cpu = now, now_cpu
            if logger is not None:
                logger.log(self._step)
                now, now_cpu = clock(), cpu()
                found.calls_s.append(now_cpu - at_cpu)
            held = now - start - (now_cpu - start_cpu) - (self._queued_s() - queued_before)
            found.steps_s.append(now - start)
            found.add(threads, ran_before, held, min(held_longest, held), held_by)
        found.end(clock() - began, cpu_of_helpers(), threads)
        return found

    def _queued_s(self) -> float:
        """Return how long this thread has waited for a processor."""
        return int(os.pread(self._waited, 100, 0).split()[1]) / 1e9


@dataclass
class _Period:
    """What was measured in some seconds of the loop."""

    helpers_before: dict[int, float]
    before_ns: dict[str, int]
    wakes_before: dict[str, int]
    steps_s: list[float] = field(default_factory=list)
    calls_s: list[float] = field(default_factory=list)
    held_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    longest_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    cpu_s: dict[str, float] = field(default_factory=dict)
    wakes: dict[str, float] = field(default_factory=dict)

    def add(
        self,
        threads: _Threads,
        before_ns: dict[int, int],
        held_s: float,
        longest_s: float,
        then_ns: dict[int, int],
    ) -> None:
        """Add a step: which threads ran while it was held up, as a whole and for longest."""
        if held_s <= 0.0:
            return
        ran = {thread: spent - before_ns.get(thread, 0) for thread, spent in threads.now_ns().items()}
        total = sum(ran.values())
        if not total:
            self.held_s[_NOBODY] += held_s
            return
        for thread, spent in ran.items():
            self.held_s[threads.name(thread)] += held_s * spent / total
        if longest_s > _LATE_S:
            then = {thread: spent - before_ns.get(thread, 0) for thread, spent in then_ns.items()}
            most = max(then, key=then.__getitem__, default=None)
            if most is not None:
                name = threads.name(most)
                self.longest_s[name] = max(self.longest_s[name], min(longest_s, then[most] / 1e9))

    def end(self, seconds: float, helpers: dict[int, float], threads: _Threads) -> None:
        """Count what the threads have used until now."""
        self.cpu_s = {
            name: (spent - self.before_ns.get(name, 0)) / 1e9 for name, spent in threads.totals_ns().items()
        }
        self.cpu_s[_LOOP] = sum(self.calls_s)
        self.cpu_s[_HELPERS] = sum(
            spent - self.helpers_before.get(pid, 0.0) for pid, spent in helpers.items()
        )
        self.wakes = {
            name: (count - self.wakes_before.get(name, 0)) / seconds
            for name, count in threads.wakes().items()
        }

    def figures(self, usual: list[float]) -> dict[str, Any]:
        """Return the figures of each thread and of all, against `usual` steps without a logger."""
        count, step_s = len(self.steps_s), statistics.fmean(usual)
        slowed = {**self.held_s, _LOOP: sum(self.calls_s)}
        names = {*self.cpu_s, *slowed}
        return {
            "records": count,
            "mean": statistics.fmean(self.steps_s) / step_s - 1,
            "median": statistics.median(self.steps_s) / statistics.median(usual) - 1,
            "slowdown": sum(slowed.values()) / count / step_s,
            "cpu_us": sum(self.cpu_s.values()) / count * 1e6,
            "wakes": sum(self.wakes.values()) - self.wakes.get(_LOOP, 0.0),
            "longest_ms": max(self.longest_s.values(), default=0.0) * 1e3,
            "threads": {
                name: {
                    "cpu_us": self.cpu_s.get(name, 0.0) / count * 1e6,
                    "wakes": self.wakes.get(name, 0.0),
                    "longest_ms": self.longest_s.get(name, 0.0) * 1e3,
                    "slowdown": slowed.get(name, 0.0) / count / step_s,
                }
                for name in sorted(names, key=lambda name: -self.cpu_s.get(name, 0.0))
            },
        }


def _piece_of(kind: str) -> Callable[[], None]:
    """Return a function that keeps torch busy for a piece of a step."""
    import torch

    # One thread, so that all that the loop's thread waits for is the interpreter lock.
    torch.set_num_threads(1)
    once = operation_of(kind, width=96)
    for _ in range(1000):
        once()
    before = time.thread_time()
    for _ in range(2000):
        once()
    repeats = max(1, round(_STEP_S / _PIECES / ((time.thread_time() - before) / 2000)))

    def piece() -> None:
        for _ in range(repeats):
            once()

    return piece


def _rows(title: str, what: str, found: dict[str, Any]) -> list[list[str]]:
    first, rest = found["first"], found["rest"]

    def row(thread: str, one: dict[str, float], two: dict[str, float]) -> list[str]:
        def both(key: str, form: str) -> str:
            return f"{one.get(key, 0.0):{form}} / {two.get(key, 0.0):{form}}"

        measured = [both(key, "+.1%") if key in one else "" for key in ("mean", "median")]
        return [
            title,
            what,
            thread,
            both("cpu_us", ".1f"),
            both("wakes", ".1f"),
            both("longest_ms", ".1f"),
            both("slowdown", ".2%"),
            *measured,
        ]

    rows = [row("all", first, rest)]
    names = dict.fromkeys([*rest["threads"], *first["threads"]])
    for name in names:
        one, two = first["threads"].get(name, {}), rest["threads"].get(name, {})
        if any(
            each.get("cpu_us", 0.0) >= _LEAST_CPU_US or each.get("longest_ms", 0.0) >= _LEAST_HOLD_MS
            for each in (one, two)
        ):
            rows.append(row(name, one, two))
    return rows


def _claims(figures: dict[str, Any]) -> list[Claim]:
    claims = []
    for name, title, limit in (
        (OURS.name, "defaults", 25.0),
        (NO_DIAGNOSTICS.name, "without diagnostics", 12.0),
    ):
        if name in figures:
            worst = max(figures[name][kind]["rest"]["cpu_us"] for kind in _KINDS)
            text = f"processor time of all threads, one record a step, {title}"
            claims.append(Claim(text=text, measured=worst, limit=limit, unit=" µs"))
    if OURS.name in figures:
        ours = figures[OURS.name]
        longest = max(ours[kind]["first"]["longest_ms"] for kind in _KINDS)
        claims.append(
            Claim(text="longest hold in the first ten seconds", measured=longest, limit=2.0, unit=" ms")
        )
        beyond = max(
            (ours[kind]["first"]["slowdown"] - ours[kind]["rest"]["slowdown"]) * 100 for kind in _KINDS
        )
        claims.append(
            Claim(
                text="slowdown of the first ten seconds beyond the rest",
                measured=beyond,
                limit=0.5,
                unit=" %",
            )
        )
    return claims


if __name__ == "__main__":
    run_alone(build)
