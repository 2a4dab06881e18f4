"""MLflow: the folders of its file store, `mlruns`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import LinesSource, Stream, read_small
from toolkit.telemetry.importers.folders import Folder, Found, files_below
from toolkit.telemetry.importers.source import (
    BATCH_BYTES,
    Batch,
    Builder,
    SourceInfo,
    Status,
    as_step,
    run_info,
)
from toolkit.telemetry.importers.times import from_ms
from toolkit.telemetry.importers.yaml_text import load

FORMAT: Final = "mlflow"
STATES: Final = {1: "running", 2: "running", 3: "finished", 4: "failed", 5: "failed"}
"""RUNNING, SCHEDULED, FINISHED, FAILED, KILLED."""
_MOST_FILES: Final = 20_000


class MlflowFilesSource(LinesSource):
    """One run: a file of lines for each metric, a file for each param and tag."""

    window = 256 * 1024

    def __init__(self, info: SourceInfo, folder: str) -> None:
        super().__init__(info)
        self._folder = folder
        self._has_params = False

    def streams(self) -> Sequence[Stream]:
        """Return the metrics' files; slashes in names are folders."""
        top = f"{self._folder}/metrics"
        return [
            Stream(f"{top}/{name}", metric=name)
            for name in files_below(self.info.root / top, most=_MOST_FILES)
        ]

    def read(self, cursor: Any, *, max_bytes: int = BATCH_BYTES) -> Batch:
        """Return what is new, with the run's status."""
        if not self._has_params:
            self._has_params = True
            self._read_params()
        batch = super().read(cursor, max_bytes=max_bytes)
        meta = _meta(self.info.root, self._folder)
        state = STATES.get(meta.get("status", 0) if type(meta.get("status")) is int else 0)
        self._end = None
        if state is not None:
            self._end = Status(state, last_sign=self._last_sign, ended=from_ms(meta.get("end_time")))
        return batch

    def line(self, stream: Stream, line: bytes, state: dict[str, Any], out: Builder) -> None:  # noqa: ARG002
        """Add one line: time in milliseconds, value, step; old lines have no step."""
        words = line.split()
        try:
            timestamp = int(words[0]) / 1000
            value = float(words[1])
            step = int(words[2]) if len(words) > 2 else 0
        except (ValueError, IndexError, OverflowError):
            out.pass_over("lines of metrics that are not time, value and step")
            return
        out.add(stream.metric, as_step(step), timestamp, value)

    def _read_params(self) -> None:
        for kind in ("params", "tags"):
            top = f"{self._folder}/{kind}"
            for name in files_below(self.info.root / top, most=_MOST_FILES):
                try:
                    value = read_small(self.info.root, f"{top}/{name}", limit=64 * 1024).decode(
                        "utf-8", "replace"
                    )
                except OSError:
                    continue
                if kind == "params":
                    self.info.keep([(name, value)])
                elif name == "mlflow.parentRunId":
                    self.info.parent = value[:100]
                elif name == "mlflow.runName":
                    self.info.name = value[:1000] or self.info.name
                elif not name.startswith("mlflow.") and len(self.info.tags) < 1000:
                    self.info.tags.append(f"{name}={value[:1000]}")


def _meta(root: Path, folder: str) -> dict[str, Any]:
    try:
        return load(
            read_small(root, f"{folder}/meta.yaml" if folder != "." else "meta.yaml", limit=256 * 1024)
        )
    except OSError:
        return {}


def sources_in(folder: Folder) -> Found:
    """Return the run of a folder whose meta.yaml says that it is one."""
    if "meta.yaml" not in folder.files or not {"metrics", "params", "tags", "artifacts"} & set(
        folder.folders
    ):
        return Found()
    meta = _meta(folder.root, folder.relative)
    run_id = meta.get("run_id") or meta.get("run_uuid")
    if type(run_id) is not str or "experiment_id" not in meta:
        return Found()
    experiment: dict[str, Any] = {}
    if folder.relative != ".":
        above = str(Path(folder.relative).parent.as_posix())
        experiment = _meta(folder.root, above)
    name = meta.get("run_name") or meta.get("name")
    info = run_info(FORMAT, run_id, str(name or run_id), folder.root, [folder.relative], run_id=run_id[:100])
    info.group = str(experiment.get("name", ""))[:1000]
    stages = (meta.get("lifecycle_stage"), experiment.get("lifecycle_stage"))
    info.deleted = "deleted" in stages or ".trash" in Path(folder.relative).parts
    # Whatever lies in artifacts is no run of this store.
    return Found(
        [MlflowFilesSource(info, folder.relative)], frozenset({"meta.yaml"}), frozenset(folder.folders)
    )
