"""The folder of one run of MLflow: its records, sessions, run.json and metrics.csv."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.compat.mlflow_store.run_state import BLOCK, param_records, start_s
from toolkit.telemetry.compat.mlflow_store.shared_log import SharedLog
from toolkit.telemetry.core.background import FILES, background_job
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.environment import describe_environment
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.writing.sessions import alone_in, new_session, with_session
from toolkit.telemetry.runfolder.journal.end_record import ended_by, with_end_record
from toolkit.telemetry.runfolder.labels import LabelsError, read_labels, write_labels
from toolkit.telemetry.runfolder.layout import (
    METRICS_CSV,
    METRICS_JSONL,
    PRIVATE,
    claim_folder,
    safe_run_name,
)
from toolkit.telemetry.runfolder.manifest import Heartbeat, Manifest, read_manifest, write_manifest
from toolkit.telemetry.runfolder.records import END, ENVIRONMENT, START, Record
from toolkit.telemetry.runfolder.status import FAILED, FINISHED, LOST, RUNNING, STOPPED, work_out_status
from toolkit.telemetry.runfolder.table.columns import SHORT
from toolkit.telemetry.runfolder.table.csv_table import build_table

CHANGE: Final = "mlflow"
"""The kind of a record that only has a block."""
EXPERIMENT: Final = "mlflow_experiment"
"""Key of run.json: the experiment, so that runs of others are not read."""
_BEAT_S: Final = 5.0
_ENDS: Final = {"FINISHED": FINISHED, "FAILED": FAILED, "KILLED": STOPPED}
_SHOWN_TAGS: Final = 50
_SHOWN_NAME: Final = 250
"""Characters of a name in run.json, which has a limit; MLflow has none for names."""
_TABLE_WAIT_S: Final = 30.0


class RunFolder:
    """One run. Several processes, and several objects of one process, may write to the same run."""

    def __init__(self, folder: Path, run_id: str, experiment_id: str) -> None:
        self.folder = folder
        self.run_id = run_id
        self.experiment_id = experiment_id
        self.log = SharedLog(folder / METRICS_JSONL)
        self._is_described = False

    @classmethod
    def create(cls, log_dir: Path, run_id: str, about: dict[str, Any], project: str | None) -> RunFolder:
        """Make the folder of a new run; `about` is what MLflow keeps of it."""
        name = about["run_name"]
        folder = claim_folder(log_dir, safe_run_name(name), PRIVATE)
        run = cls(folder, run_id, about["experiment_id"])
        now = time.time()
        session = new_session(1, start_s(about, now))
        try:
            # Written first: records without it would be no run for anyone.
            run.write(
                Manifest(
                    run_id=run_id,
                    name=folder.name,
                    display_name=name[:_SHOWN_NAME],
                    created=session.started,
                    project=project,
                    tags=_shown(about["tags"]),
                    sessions=(session,),
                    heartbeat=Heartbeat(time=now, seq=0),
                    table=SHORT,
                    config={},
                    other={EXPERIMENT: run.experiment_id},
                )
            )
            os.close(os.open(run.log.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE.file))
            with run.log.alone():
                run.append([{"event": START, "session": 1, "run_name": name[:_SHOWN_NAME], BLOCK: about}])
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        live.add(run)
        return run

    def append(self, records: Iterable[Record]) -> None:
        """Append records; those without a time get the present one. Inside of `log.alone()`."""
        now = time.time()
        session = self.log.state().session
        self.log.append([{"session": session, "time": now, **record} for record in records])

    def change(self, block: dict[str, Any], *, project: str | None = None) -> None:
        """Keep what MLflow changes about the run; None as the value of a tag removes it."""
        with self.log.alone() as state:
            before = state.about.get("status")
            status = block.get("status", before)
            if status in _ENDS and status != before:
                end_s, now = (block.get("end_time") or 0) / 1000, time.time()
                ended = end_s if state.session_began <= end_s <= now else now
                end = {"event": END, "time": ended, "status": _ENDS[status], "reason": f"MLflow: {status}"}
                self.append([{**end, BLOCK: block}])
                # It may have ended before, in another way.
                self.write(ended_by(with_end_record(read_manifest(self.folder), self.folder), end))
            elif status == "RUNNING" and "status" in block and self._is_over():
                self._begin_session(block)
            else:
                self.append([{"event": CHANGE, BLOCK: block}])
            if project is not None or "run_name" in block or "tags" in block:
                self._relabel(project)
        if block.get("status") in _ENDS:
            with live.guard.catch("writing metrics.csv"):
                self._write_table()
        if "lifecycle_stage" in block:
            self._show_in_lists(is_deleted=block["lifecycle_stage"] != "active")

    def log_params(self, params: dict[str, str]) -> None:
        """Keep new params. Inside of `log.alone()`."""
        if params:
            self.append(param_records(params, self.log.state().params))

    def _is_over(self) -> bool:
        manifest = with_end_record(read_manifest(self.folder), self.folder)
        return work_out_status(manifest, time.time()).name in (FINISHED, FAILED, STOPPED, LOST)

    def _begin_session(self, block: dict[str, Any]) -> None:
        state, now = self.log.state(), time.time()
        earlier = with_end_record(read_manifest(self.folder), self.folder)
        session = new_session(state.session + 1, now)
        start: list[Record] = [
            {"event": START, "run_name": state.about["run_name"][:_SHOWN_NAME], BLOCK: block}
        ]
        if state.params:
            start += param_records(state.params, {})
        self.write(with_session(earlier, session, TelemetryOptions(), self.folder))
        self.append([{**record, "session": session.session} for record in start])
        self._is_described = False
        live.add(self)

    def _relabel(self, project: str | None) -> None:
        about = self.log.state().about
        manifest = read_manifest(self.folder)
        self.write(
            replace(
                manifest,
                display_name=about["run_name"][:_SHOWN_NAME] or manifest.name,
                tags=_shown(about["tags"]),
                project=manifest.project if project is None else project or None,
            )
        )

    def _show_in_lists(self, *, is_deleted: bool) -> None:
        try:
            write_labels(self.folder, replace(read_labels(self.folder), archived=is_deleted))
        except LabelsError:
            # Labels that someone wrote by hand are left alone; the records say that the run is deleted.
            return

    def beat(self) -> bool:
        """Say in run.json that this process is alive; return False if the session is over or another process's."""
        if not self.log.path.exists():
            return False
        described = {} if self._is_described else describe_environment(live.guard)
        with self.log.alone():
            manifest = with_end_record(read_manifest(self.folder), self.folder)
            session, beat = manifest.latest, manifest.heartbeat
            if session is None or beat is None or session.status != RUNNING or session.pid != os.getpid():
                return False
            self.write(replace(manifest, heartbeat=replace(beat, time=time.time())))
            if described:
                self.append([{"event": ENVIRONMENT, **described}])
                self._is_described = True
        return True

    def _write_table(self) -> None:
        """Write metrics.csv. Others may log meanwhile."""
        with alone_in(self.folder, _TABLE_WAIT_S):
            build_table(self.log.path, self.folder / METRICS_CSV, form=SHORT)

    def write(self, manifest: Manifest) -> None:
        """Write run.json. Inside of `log.alone()`."""
        write_manifest(self.folder, manifest, mode=PRIVATE.file)


class _LiveRuns:
    """The runs whose newest session is this process's: a job writes their heartbeats."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin without runs; a forked child does, whose locks another thread of the parent may have held."""
        self.guard = Guard()
        self._lock = threading.Lock()
        self._runs: set[RunFolder] = set()
        self._has_job = False

    def add(self, run: RunFolder) -> None:
        """Write heartbeats for a run from now on, until its session is over."""
        with self._lock:
            self._runs.add(run)
            if not self._has_job:
                self._has_job = True
                with self.guard.catch("starting the heartbeat of MLflow's runs"):
                    background_job("telemetry-mlflow", self._turn, FILES).start(_BEAT_S / 2)

    def _turn(self) -> float | None:
        with self._lock:
            runs = list(self._runs)
            self._has_job = bool(runs)
        for run in runs:
            with self.guard.catch("the heartbeat of an MLflow run"):
                if not run.beat():
                    with self._lock:
                        self._runs.discard(run)
        return _BEAT_S if runs else None


live = _LiveRuns()


def _shown(tags: dict[str, str]) -> tuple[str, ...]:
    """Return the tags of a run for lists of runs: without those that MLflow sets itself."""
    own = [f"{key[:100]}={value[:100]}" for key, value in tags.items() if not key.startswith("mlflow.")]
    return tuple(own[:_SHOWN_TAGS])
