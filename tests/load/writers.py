"""Many processes that log into one directory at once, and a check of the result."""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import orjson

from tests.leftovers import journals_of_runs_below
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_CSV, METRICS_JSONL, OUTPUT_LOG, OUTPUT_TIMES
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.table.columns import Columns
from toolkit.telemetry.runfolder.table.csv_table import table_form

_SPAN_EVERY = 50
_LOOK_EVERY_S = 1.0
_PATIENCE_END_S = 60.0
_SHOWN_CHARS = 2_000
_SHOWN_PROCESSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrote:
    """The report of one process."""

    worker: int
    folder: str
    start_s: float
    """Seconds to create a logger while all others do the same."""
    steps: int
    spans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The contents of the directory when all are done."""

    runs: int
    records: int
    lost: int
    """Acknowledged steps and spans that are missing."""
    foreign: int
    """Records of a process other than the folder's own."""
    out_of_order: int
    """Records whose `seq` does not follow the previous record's."""
    rows_missing: int
    """Records without a row in metrics.csv."""
    not_finished: int
    left_over: int
    """Leftover files: journals and temporary files that were not renamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a reader saw that listed and read the runs meanwhile."""

    looks: int
    most_runs: int
    bad_lines: int
    problems: int


def write_together(
    log_dir: Path, *, processes: int, steps: int, sharing: int = 1
) -> tuple[list[Wrote], Watched]:
    """Start `processes` processes at once that log `steps` each, with a table and spans; return the results.

    `sharing` of them use one name, the others their own.
    """
    context = multiprocessing.get_context("forkserver")
    # Import first, so that only logging is measured.
    context.set_forkserver_preload(["toolkit.telemetry.logger.session.live_run"])
    barrier = context.Barrier(processes)
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as printed:
        workers = [
            context.Process(
                target=_work,
                args=(number, str(log_dir), steps, number % sharing == 0, barrier, answers, printed),
            )
            for number in range(processes)
        ]
        watcher = _Watcher(log_dir)
        found: list[Wrote] = []
        try:
            for worker in workers:
                worker.start()
            for answer in _answers(answers, workers, _patience_s(steps)):
                found.append(Wrote(**answer))
        except (queue.Empty, OSError) as error:
            raise RuntimeError(f"{error}; {_said(Path(printed), workers)}") from error
        finally:
            for worker in workers:
                if worker.pid is not None and worker.exitcode is None:
                    worker.join(_PATIENCE_END_S if len(found) == len(workers) else 0.0)
                    worker.kill()
    return sorted(found, key=lambda wrote: wrote.worker), watcher.end()


def _answers(answers: Any, workers: Sequence[BaseProcess], patience_s: float) -> Iterator[dict[str, Any]]:
    """Yield the answer of each worker.

    Raises:
        queue.Empty: one died without an answer, or all together took longer than `patience_s`.
    """
    deadline = time.monotonic() + patience_s
    for _ in workers:
        while True:
            # Looked at before the wait: what a process has answered before it ended comes during it.
            ended = [worker for worker in workers if worker.exitcode is not None]
            try:
                yield answers.get(timeout=_LOOK_EVERY_S)
                break
            except queue.Empty:
                if any(worker.exitcode for worker in ended) or len(ended) == len(workers):
                    raise queue.Empty("a process ended without an answer") from None
                if time.monotonic() > deadline:
                    raise queue.Empty(f"not all finished within {patience_s:.0f} s") from None


def _said(printed: Path, workers: Sequence[BaseProcess]) -> str:
    """Return the exit codes of the processes, and what those that failed printed last."""
    lines = [f"exit codes {[worker.exitcode for worker in workers]}"]
    for number, worker in enumerate(workers):
        path = printed / str(number)
        if worker.exitcode and path.exists():
            lines.append(f"process {number}: {path.read_text(errors='replace')[-_SHOWN_CHARS:]}")
    return "\n".join(lines[:_SHOWN_PROCESSES])


def look_into(log_dir: Path, wrote: list[Wrote]) -> Found:
    """Compare `log_dir` with the reports of its writers."""
    totals = dict.fromkeys(("records", "lost", "foreign", "out_of_order", "rows_missing", "not_finished"), 0)
    for one in wrote:
        folder = Path(one.folder)
        steps: set[int] = set()
        spans, with_row, seq = 0, 0, -1
        has_row = Columns(table_form(folder)).has_row
        for record in _records(folder / METRICS_JSONL):
            totals["records"] += 1
            with_row += has_row(record)
            totals["out_of_order"] += record["seq"] != seq + 1
            seq = record["seq"]
            if record["event"] == "step":
                totals["foreign"] += record["worker"] != one.worker
                steps.add(record["global_step"])
            elif record["event"] == "span" and record["name"] == "validation":
                totals["foreign"] += record["attributes"]["worker"] != one.worker
                spans += 1
        totals["lost"] += len(set(range(one.steps)) - steps) + max(0, one.spans - spans)
        with open(folder / METRICS_CSV, "rb") as table:
            totals["rows_missing"] += abs(sum(1 for _ in table) - 1 - with_row)
        totals["not_finished"] += read_manifest(folder).sessions[-1].status != "finished"
    known = {MANIFEST, METRICS_JSONL, METRICS_CSV, OUTPUT_LOG, OUTPUT_TIMES}
    left_over = sum(
        1 for folder in log_dir.iterdir() for path in folder.iterdir() if path.name not in known
    ) + len(journals_of_runs_below(log_dir))
    return Found(runs=sum(1 for _ in log_dir.iterdir()), left_over=left_over, **totals)


def _patience_s(steps: int) -> float:
    """Return how long all may take on a small machine before they count as hung."""
    return 150.0 + 0.06 * steps


def _work(
    number: int, log_dir: str, steps: int, one_name: bool, barrier: Any, answers: Any, printed: str
) -> None:
    import faulthandler

    with open(Path(printed) / str(number), "wb") as own:
        for stream in (1, 2):
            os.dup2(own.fileno(), stream)
    from toolkit.telemetry import TelemetryLogger

    # If one hangs, it prints where.
    faulthandler.dump_traceback_later(_patience_s(steps) - 30.0, exit=True)
    barrier.wait(_patience_s(steps))
    began = time.perf_counter()
    name = "all" if one_name else f"worker-{number}"
    # Sixty-four processes on two cores end slowly, so the timeout is generous.
    patience_s, kept = min(_patience_s(steps), 600.0), {"keep": ["validation"]}
    log = TelemetryLogger(name, log_dir=log_dir, log_every=1, close_timeout=patience_s, spans=kept)
    started = time.perf_counter()
    spans = 0
    for step in range(steps):
        if step % _SPAN_EVERY == 0:
            with log.span("validation", worker=number):
                spans += 1
        # A constant loss would be reported as a plateau.
        log.log_step(step, train_loss=2.0 / (1.0 + step), worker=number, lr=1e-4)
    folder = log.run_folder
    log.close()
    answers.put(
        {"worker": number, "folder": str(folder), "start_s": started - began, "steps": steps, "spans": spans}
    )


class _Watcher:
    """A dashboard store that lists the directory and reads its runs on a separate thread."""

    def __init__(self, log_dir: Path) -> None:
        from toolkit.telemetry.runs.sources.local_store import LocalStore

        self._store = LocalStore([log_dir], cache_dir=None)
        self._looks = self._most = self._problems = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watching many runs", daemon=True)
        self._thread.start()

    def end(self) -> Watched:
        self._ending.set()
        self._thread.join(60.0)
        self._poll()
        bad = sum(self._store.refresh(card.key).bad_count for card in self._store.list_runs().cards)
        return Watched(looks=self._looks, most_runs=self._most, bad_lines=bad, problems=self._problems)

    def _run(self) -> None:
        while not self._ending.wait(0.3):
            self._poll()

    def _poll(self) -> None:
        runs = self._store.list_runs()
        self._looks += 1
        self._most = max(self._most, len(runs.cards))
        self._problems += sum(card.problem is not None for card in runs.cards)
        # The newest ones, as a user would open them.
        for card in runs.cards[:3]:
            health = self._store.refresh(card.key, wait_s=0.1)
            self._problems += health.bad_count + health.lost_records


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        for line in file:
            yield orjson.loads(line)
