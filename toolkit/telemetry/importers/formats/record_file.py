"""`metrics.jsonl`: of a run folder of ours, and of the ai-toolkit fork that this logger began as."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import LinesSource, Stream
from toolkit.telemetry.importers.folders import Folder, Found
from toolkit.telemetry.importers.json_text import parsed
from toolkit.telemetry.importers.source import NO_STEP, Builder, Status, as_step, run_info
from toolkit.telemetry.runfolder.key_values import config_of
from toolkit.telemetry.runfolder.layout import METRICS_CSV, METRICS_JSONL
from toolkit.telemetry.runfolder.listed_run import missing_records
from toolkit.telemetry.runfolder.manifest import ManifestError, read_manifest
from toolkit.telemetry.runfolder.metrics import metrics_of, position_of
from toolkit.telemetry.runfolder.records import END, ERROR, MAX_LINE_BYTES, START

OURS: Final = "telemetry"
FORK: Final = "ai-toolkit-fork"


class RecordFileSource(LinesSource):
    """The records of one run; each start record begins a session."""

    def streams(self) -> Sequence[Stream]:
        """Return the one file."""
        return [Stream(METRICS_JSONL)] if self.info.format == OURS else [Stream(self.info.pieces[0].path)]

    def line(self, stream: Stream, line: bytes, state: dict[str, Any], out: Builder) -> None:  # noqa: ARG002
        """Add one record."""
        record = parsed(line) if len(line) <= MAX_LINE_BYTES else None
        event = record.get("event") if record is not None else None
        if record is None or type(event) is not str:
            out.pass_over("lines that are no record")
            return
        if event == START:
            state["starts"] = state.get("starts", 0) + 1
            self._end = None
            self.info.keep(config_of(record).items())
        elif event in (END, ERROR):
            is_failed = event == ERROR or record.get("status") == "failed"
            self._end = Status("failed" if is_failed else "finished", last_sign=self._last_sign)
        at = position_of(record)
        session = at.session or max(state.get("starts", 0) - 1, 0)
        step = as_step(at.step) if not math.isnan(at.step) else NO_STEP
        is_event = True
        for name, value in metrics_of(record):
            is_event = False
            out.add(name, step, at.time, value, session=session, kind=event)
        if is_event:
            out.not_number(f"{event} (record)")

    def at_end(self, stream: Stream, rest: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:  # noqa: ARG002
        """Take a last line without its newline, if it is complete."""
        if len(rest) > MAX_LINE_BYTES or parsed(rest) is None:
            return 0
        self.line(stream, rest, state, out)
        return len(rest)


def source_of_folder(folder: Path) -> RecordFileSource:
    """Return the run of a run folder of ours."""
    name = Path(os.path.abspath(folder)).name
    info = run_info(OURS, os.path.realpath(folder), name, folder, [METRICS_JSONL])
    with suppress(OSError, ManifestError):
        manifest = read_manifest(folder)
        info.run_id = manifest.run_id
        if missing := missing_records(manifest, folder):
            info.note(missing)
    return RecordFileSource(info)


def sources_in(folder: Folder) -> Found:
    """Return the run of a folder that the fork's logger wrote: records with an event and a time, and no manifest."""
    if METRICS_JSONL not in folder.files:
        return Found()
    record = parsed(folder.head(METRICS_JSONL, 256 * 1024).split(b"\n")[0])
    if record is None or type(record.get("event")) is not str or type(record.get("time")) not in (int, float):
        return Found()
    pieces = [folder.below(METRICS_JSONL)]
    info = run_info(FORK, os.path.realpath(folder.path), folder.path.name, folder.root, pieces)
    mirrors = frozenset({"tensorboard", "wandb"})
    return Found([RecordFileSource(info)], frozenset({METRICS_JSONL, METRICS_CSV}), mirrors)
