"""A log directory with very many runs, listed as the page does."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.large_run import write_many_runs
from toolkit.telemetry.runfolder.manifest import Heartbeat, read_manifest, write_manifest
from toolkit.telemetry.runs.listing.search import matches, parse, sort_cards
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.store import RunCard, UnknownRun

_PER_PAGE = 100
_MB = 1024 * 1024

QUERIES = ("", "run-0007", "status:finished loss<0.6", "-tag:baseline duration>1s", "lr>1e-5 progress>40%")
ORDERS = ("last sign", "started", "name", "loss", "progress", "duration", "status")


def one_look(store: LocalStore, text: str = "", order: Any = "last sign") -> list[RunCard]:
    """List, search, sort and sample the losses of the first page: what one refresh of the runs page does."""
    # The store reads the disk at most twice a second, so nine of ten refreshes here would cost nothing.
    store._rescan()  # noqa: SLF001
    query = parse(text)
    shown = sort_cards([card for card in store.list_runs().cards if matches(query, card)], order)
    store.trends([card.key for card in shown[:_PER_PAGE]])
    return shown


def touch(root: Path, name: str, step: int) -> None:
    """Update the heartbeat of one run."""
    folder = root / name
    manifest = read_manifest(folder)
    beat = Heartbeat(time=time.time(), seq=step, global_step=step)
    write_manifest(folder, replace(manifest, heartbeat=beat))


def ask_for_nothing(store: LocalStore) -> None:
    """Request a missing run, like a tab whose run was removed."""
    try:
        store.meta("run-of-last-year-that-is-gone")
    except UnknownRun:
        return
    raise AssertionError("there is such a run")


def measure(folder: Path, runs: int, looks: int) -> dict[str, Any]:
    """Return the cost of listing `runs` runs: first, again, after one changed, and after many refreshes."""
    root = folder / "logs"
    write_many_runs(root, runs, records=30)
    process = psutil.Process()
    before = process.memory_info().rss
    store = LocalStore([root], cache_dir=None)
    first_s = _seconds(lambda: one_look(store))
    held_mb = (process.memory_info().rss - before) / _MB
    again = [_seconds(lambda: one_look(store)) for _ in range(5)]
    changed = []
    for step in range(5):
        touch(root, f"run-{step:04}", step + 1)
        changed.append(_seconds(lambda: one_look(store)))
    searched = [_seconds(lambda text=text: one_look(store, text)) for text in QUERIES]  # type: ignore[misc]
    sorted_s = [_seconds(lambda order=order: one_look(store, "", order)) for order in ORDERS]  # type: ignore[misc]
    unknown = [_seconds(lambda: ask_for_nothing(store)) for _ in range(3)]
    points = [usage(process)]
    for number in range(looks):
        one_look(store, QUERIES[number % len(QUERIES)], ORDERS[number % len(ORDERS)])
        if (number + 1) % max(1, looks // 4) == 0:
            points.append(usage(process))
    return {
        "runs": runs,
        "looks": looks,
        "first_s": first_s,
        "again_s": statistics.median(again),
        "changed_s": statistics.median(changed),
        "search_s": statistics.median(searched),
        "sort_s": statistics.median(sorted_s),
        "unknown_s": statistics.median(unknown),
        "held_mb": held_mb,
        "points": points,
    }


def usage(process: psutil.Process) -> dict[str, float]:
    """Return the resources the process holds now."""
    return {
        "rss_mb": process.memory_info().rss / _MB,
        "files": float(len(os.listdir("/proc/self/fd"))) if os.path.isdir("/proc/self/fd") else 0.0,
        "threads": float(threading.active_count()),
    }


def _seconds(call: Callable[[], object]) -> float:
    # Processor time: other processes on the machine do not count.
    began = time.thread_time()
    call()
    return time.thread_time() - began
