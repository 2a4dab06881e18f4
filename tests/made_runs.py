"""Makes run folders of any content: written at once, or by the real logger; and logs of other tools."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.key_values import key_values_in
from toolkit.telemetry.runfolder.labels import Labels, write_labels
from toolkit.telemetry.runfolder.layout import METRICS_JSONL, rank_file
from toolkit.telemetry.runfolder.manifest import Heartbeat, Manifest, Session, write_manifest
from toolkit.telemetry.runfolder.process import boot_id, host_name, process_started
from toolkit.telemetry.runfolder.status import HEARTBEAT_TIMEOUT_S

BEGAN = 1_700_000_000.0
"""When a run that has ended began; a live one begins so that its last record is of now."""

SECONDS_A_STEP = 0.5

Curve = Sequence[float] | Callable[[int], float]

_ENDED = {"finished": "finished", "stopped": "someone asked for it", "failed": "ValueError: no such file"}
_LIVE = ("starting", "running", "stalled")


def write_run(
    root: Path,
    name: str = "run",
    records: Iterable[Mapping[str, Any]] | None = None,
    *,
    curves: Mapping[str, Curve] | None = None,
    sessions: Sequence[Sequence[int]] = (range(100),),
    extra: Iterable[Mapping[str, Any]] = (),
    start: Mapping[str, Any] | None = None,
    status: str | None = "finished",
    host: str | None = None,
    pid: int | None = None,
    age_s: float | None = None,
    began: float | None = None,
    display_name: str | None = None,
    project: str | None = None,
    tags: Sequence[str] = (),
    summary: Mapping[str, Any] | None = None,
    control: Mapping[str, Any] | None = None,
    labels: Labels | None = None,
    ranks: Mapping[int, Mapping[str, Curve]] | None = None,
) -> Path:
    """Write the run folder `root / name` and return it.

    Records: `records` as they are, or else for each of `sessions` (its steps, one after the other; a later one may
    begin again at an earlier step) a start record, a step record a step with the values of `curves` (a list along all
    sessions, or a function of the step), and an end record. `extra` follows. `ranks` adds the files of others.

    `status` is what the dashboard will find: finished, stopped, failed, lost, running, stalled, starting (the last
    three in the name of this very process, or of `pid`), or None for a folder without run.json. `age_s` is how long
    the last sign of life is ago, where that is not what the status says; `host` another machine than this one.
    """
    folder = root / name
    folder.mkdir(parents=True)
    steps = [list(part) for part in sessions]
    length_s = sum(len(part) for part in steps) * SECONDS_A_STEP
    # As far ahead as clocks may be: the test may be held up for twice as long until it looks, and the run is live.
    ahead_s = HEARTBEAT_TIMEOUT_S if age_s is None and status in ("running", "starting") else 0.0
    if age_s is None and status in _LIVE:
        age_s = 60.0 if status == "stalled" else 1.0
    if began is None:
        began = BEGAN if age_s is None else time.time() - age_s - length_s
    if records is None:
        records = _records(steps, curves or {"train_loss": _falling}, began, start or {}, status)
    append(folder, [*records, *extra])
    for rank, of_rank in (ranks or {}).items():
        path = rank_file(folder, rank)
        path.parent.mkdir(exist_ok=True)
        append(folder, _records(steps, of_rank, began, {}, "running"), path=path)
    if labels is not None:
        write_labels(folder, labels)
    if status is not None:
        found = key_values_in(folder / METRICS_JSONL)
        write_manifest(
            folder,
            Manifest(
                run_id=f"{zlib.crc32(os.fsencode(name)):016x}",
                name=name.encode("utf-8", "replace").decode(),
                display_name=display_name or name.encode("utf-8", "replace").decode(),
                created=began,
                project=project,
                tags=tuple(tags),
                sessions=_sessions(steps, began, status, host, pid, (folder / METRICS_JSONL).stat().st_size),
                heartbeat=_heartbeat(steps, began + length_s + ahead_s, status),
                control=control or {},
                summary=_summary(steps, status) if summary is None else summary,
                config=found.config or {},
                evaluations=found.evaluations,
            ),
        )
    return folder


def append(folder: Path, records: Iterable[Mapping[str, Any]], *, path: Path | None = None) -> Path:
    """Write `records` after what is in the folder's record file, or in `path`; return the folder, made if need be."""
    path = path or folder / METRICS_JSONL
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.writelines(encode(dict(record)) for record in records)
    return folder


def step_record(step: int, *, session: int = 1, began: float = BEGAN, **metrics: Any) -> dict[str, Any]:
    """Return the record of one step."""
    return {
        "event": "step",
        "seq": step,
        "session": session,
        "time": began + step * SECONDS_A_STEP,
        "elapsed": step * SECONDS_A_STEP,
        "global_step": step,
        "nan_inf_detected": False,
        **metrics,
    }


def completion(step: int, text: str = "because", **fields: Any) -> dict[str, Any]:
    """Return the record of a completion."""
    return {
        "event": "completion",
        "time": 1.7e9,
        "session": 1,
        "global_step": step,
        "completion": text,
        **fields,
    }


def finding(kind: str = "spike", step: int | None = 1, **fields: Any) -> Finding:
    """Return a finding that is open since `step`, and a warning, where `fields` do not say otherwise."""
    about = {"metric": "train_loss", "severity": "warning", "noticed_step": step or 0} | fields
    return Finding(**{"id": f"1-{kind}-{about['metric']}-{step}", "kind": kind, "start_step": step, **about})


def finding_record(kind: str, step: int, *, time: float = BEGAN, **fields: Any) -> dict[str, Any]:
    """Return what a run writes of such a finding."""
    return {"event": "finding", "session": 1, "time": time, **finding(kind, step, **fields).to_fields()}


def log_run(log_dir: Path, name: str, losses: Iterable[float], **options: Any) -> Path:
    """Return a finished run, written by the real logger, one step for each loss."""
    with TelemetryLogger(name, log_dir=log_dir, log_every=1, system=False, **options) as log:
        for step, loss in enumerate(losses, start=1):
            log.log_step(step, train_loss=loss, accuracy=1 - loss)
    return log_dir / name


def write_table(path: Path, losses: Iterable[float]) -> Path:
    """Write a CSV file as another tool does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("step,train/loss\n" + "".join(f"{step},{loss}\n" for step, loss in enumerate(losses)))
    return path


def dead_pid() -> int:
    """Return the number of a process that has just ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def _falling(step: int) -> float:
    return 2.0 / (1.0 + step / 50.0)


def _records(
    sessions: list[list[int]],
    curves: Mapping[str, Curve],
    began: float,
    start: Mapping[str, Any],
    status: str | None,
) -> Iterator[dict[str, Any]]:
    done = seq = 0
    for number, steps in enumerate(sessions, 1):
        first = done
        envelope = {"session": number, "rank": 0}
        yield {
            "event": "start",
            "time": began + done * SECONDS_A_STEP,
            "elapsed": 0.0,
            "seq": (seq := seq + 1),
            **envelope,
            **start,
        }
        for step in steps:
            yield {
                "event": "step",
                "seq": (seq := seq + 1),
                "session": number,
                "time": began + done * SECONDS_A_STEP,
                "elapsed": (done - first) * SECONDS_A_STEP,
                "global_step": step,
                "nan_inf_detected": False,
                **{
                    name: float(curve(step) if callable(curve) else curve[done])
                    for name, curve in curves.items()
                },
            }
            done += 1
        if number < len(sessions) or status in _ENDED:
            yield {
                "event": "end",
                "time": began + done * SECONDS_A_STEP,
                "elapsed": (done - first) * SECONDS_A_STEP,
                "seq": (seq := seq + 1),
                **envelope,
                "status": status if number == len(sessions) else "stopped",
            }


def _sessions(
    steps: list[list[int]], began: float, status: str, host: str | None, pid: int | None, size: int
) -> tuple[Session, ...]:
    found, at = [], began
    here = host is None or host == host_name()
    for number, part in enumerate(steps, 1):
        last = number == len(steps)
        own = status if last else "stopped"
        ended = at + len(part) * SECONDS_A_STEP
        number_of_process = pid or (dead_pid() if status == "lost" and last and here else os.getpid())
        found.append(
            Session(
                session=number,
                started=at,
                pid=number_of_process,
                pid_started=process_started(number_of_process) if here else None,
                host=host or host_name(),
                boot_id=boot_id() if here else "another",
                ended=ended if own in _ENDED else None,
                status=own if own in _ENDED else "running",
                reason=_ENDED.get(own),
                record_bytes=size if own in _ENDED else None,
            )
        )
        at = ended
    return tuple(found)


def _heartbeat(steps: list[list[int]], when: float, status: str) -> Heartbeat:
    step = steps[-1][-1] if status != "starting" and steps and steps[-1] else None
    return Heartbeat(time=when, seq=sum(map(len, steps)), global_step=step)


def _summary(steps: list[list[int]], status: str) -> dict[str, Any]:
    last = steps[-1][-1] if steps and steps[-1] else 0
    return {
        "max_steps": last if status == "finished" else 2 * last,
        "train_loss": _falling(last),
        "sec_per_step": SECONDS_A_STEP,
    }
