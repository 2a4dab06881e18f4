"""A run with spans, as the logger leaves it: two sessions, epochs, validation, checkpoints, and an incident."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.made_runs import BEGAN, append, write_run
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.manifest import read_manifest, write_manifest
from toolkit.telemetry.timing.names import FOLDED

PARTS = (("data_loading", 0.010), ("forward", 0.040), ("backward", 0.080), ("optimizer_update", 0.015))
STEP_S = 0.280
"""What a step takes on every rank: who is done earlier waits for the others."""
INCIDENT_AT = 60

Fields = dict[str, Any]


class SpanRun:
    """Writes the records of a run, a second being a second: what takes time moves the clock on."""

    def __init__(
        self, *, began: float = BEGAN, rank: int = 0, keep_all: bool = False, slower: float = 1.0
    ) -> None:
        self.now = began
        self.records: list[Fields] = []
        self.count = 0
        self.rank = rank
        self.keep_all = keep_all
        self.slower = slower
        self._session = 0
        self._session_began = began
        self._open: list[tuple[str, str, float, Fields, int | None]] = []
        self._summary: dict[str, list[float]] = {}

    def write(self, event: str, **fields: Any) -> None:
        self.records.append(
            {
                "event": event,
                "time": self.now,
                "elapsed": self.now - self._session_began,
                "seq": len(self.records),
                "session": self._session,
                "rank": self.rank,
                **fields,
            }
        )

    def begin_session(self) -> None:
        self._session += 1
        self._session_began = self.now
        self._open.clear()
        self._summary.clear()
        self.write("start", config={"lr": 0.1}, perf_tag="before", session_tag="first")

    def end_session(self, *, killed: bool = False) -> None:
        if killed:
            return
        while self._open:
            self.close()
        self.write_summary()
        self.write("end", status="finished", reason="finished")

    def open(self, name: str, step: int | None = None, **attributes: Any) -> str:
        self.count += 1
        span_id = f"{self.rank + 1:04x}{self.count:012x}"
        parent = self._open[-1][0] if self._open else None
        if name not in FOLDED:
            self.write(
                "span_start",
                id=span_id,
                name=name,
                start=self.now,
                **({"parent_id": parent} if parent else {}),
                **({"attributes": attributes} if attributes else {}),
            )
        self._open.append((span_id, name, self.now, attributes, step))
        return span_id

    def close(self, *, kept: str | None = None, drop: bool = False, **fields: Any) -> None:
        span_id, name, start, attributes, step = self._open.pop()
        self._summary.setdefault(name, []).append(self.now - start)
        if drop:
            return
        self.write(
            "span",
            id=span_id,
            name=name,
            start=start,
            duration=self.now - start,
            clock="host",
            **({"parent_id": self._open[-1][0]} if self._open else {}),
            **({"global_step": step} if step is not None else {}),
            **({"attributes": attributes} if attributes else {}),
            **({"kept": kept} if kept else {}),
            **fields,
        )

    def part(self, name: str, seconds: float, **fields: Any) -> None:
        """A span that takes `seconds`."""
        self.open(name)
        self.now += seconds
        self.close(**fields)

    def step(self, step: int, *, kept: str | None) -> None:
        drop = kept is None and not self.keep_all
        times = {}
        over = self.now + STEP_S
        self.open("training_iteration", step)
        for name, seconds in PARTS:
            # No two steps take quite the same.
            took = seconds * self.slower * (1.0 + 0.1 * ((step * 7 + len(name)) % 5))
            self.open(name, step)
            self.now += took
            self.close(kept=kept, drop=drop)
            times[f"time/{name}"] = took
        self.now = over
        self.close(kept=kept, drop=drop)
        self.write(
            "step", global_step=step, train_loss=2.0 / (1 + step / 20), nan_inf_detected=False, **times
        )

    def validate(self, step: int) -> None:
        self.open("validation_loop", step, batches=4)
        self.now += 1.2
        self.write(
            "span_event",
            span_id=self._open[-1][0],
            span="validation_loop",
            name="validation_metrics_update",
            attributes={"val_loss": 1.0},
        )
        self.close()

    def checkpoint(self, step: int, **fields: Any) -> None:
        self.open("checkpoint_save_sync", step, path=f"checkpoints/{step}")
        self.now += 0.6
        self.close(**fields)
        self.write("checkpoint", global_step=step, seconds=0.6, checkpoint_path=f"checkpoints/{step}")

    def write_summary(self) -> None:
        spans = {}
        for name, values in self._summary.items():
            ordered = sorted(values)
            spans[name] = {
                "count": len(values),
                "total": sum(values),
                "min": ordered[0],
                "max": ordered[-1],
                "p50": ordered[len(ordered) // 2],
                "p95": ordered[int(len(ordered) * 0.95)],
            }
        self.write("span_summary", span_times=spans)


def span_records(*, steps: int = 100, **settings: Any) -> list[Fields]:
    """Return the records of a run of two sessions: the first is killed inside a checkpoint, the second resumes."""
    run = SpanRun(**settings)
    half = steps // 2
    _session(run, range(1, half + 1), killed=True)
    run.now += 30.0
    _session(run, range(half - 4, steps + 1), killed=False)
    return run.records


def write_span_run(
    root: Path, name: str = "spans", *, steps: int = 100, ranks: int = 1, **settings: Any
) -> Path:
    """Write such a run as a folder."""
    records = span_records(steps=steps)
    folder = write_run(root, name, records, sessions=(range(steps // 2), range(steps + 1)), **settings)
    _keep_time(folder, records)
    for rank in range(1, ranks):
        path = rank_file(folder, rank)
        path.parent.mkdir(exist_ok=True)
        append(folder, span_records(steps=steps, rank=rank, slower=1.0 + 0.1 * rank), path=path)
    return folder


def _keep_time(folder: Path, records: list[Fields]) -> None:
    """Give run.json the same times as the records."""
    manifest = read_manifest(folder)
    sessions = []
    for one in manifest.sessions:
        times = [record["time"] for record in records if record["session"] == one.session]
        sessions.append(replace(one, started=times[0], ended=times[-1]))
    last = records[-1]["time"]
    beat = replace(manifest.heartbeat, time=last) if manifest.heartbeat is not None else None
    write_manifest(folder, replace(manifest, sessions=tuple(sessions), heartbeat=beat))


def _session(run: SpanRun, steps: range, *, killed: bool) -> None:
    run.begin_session()
    run.open("application", app="example")
    for name, seconds in (("model_init", 0.8), ("dataloader_init", 0.3), ("optimizer_init", 0.1)):
        run.part(name, seconds)
    run.open("training_loop", epochs=2)
    last = steps[-1]
    for step in steps:
        run.step(step, kept=_why(step, steps[0], last, ended=not killed))
        if step == INCIDENT_AT:
            run.write(
                "finding", id="f1", kind="loss_spike", severity="warning", message="a spike", global_step=step
            )
        if step % 25 == 0 and step != last:
            run.validate(step)
            run.checkpoint(step, **({"error": {"type": "OSError", "message": "full"}} if step == 75 else {}))
    if killed:
        run.open("checkpoint_save_sync", last, path=f"checkpoints/{last}")
        run.now += 0.2
        run.write("system", cpu_percent=3.0)
    run.end_session(killed=killed)


def _why(step: int, first: int, last: int, *, ended: bool) -> str | None:
    if step - first < 5:
        return "start"
    if ended and last - step < 5:
        return "end"
    return "incident" if abs(step - INCIDENT_AT) <= 2 else None


def many_spans(steps: int) -> Iterator[Fields]:
    """Yield a run that keeps all its spans, five of them a step."""
    run = SpanRun(keep_all=True)
    run.begin_session()
    run.open("training_loop")
    for step in range(1, steps + 1):
        run.step(step, kept=None)
        yield from run.records
        run.records = []
    run.end_session()
    yield from run.records
