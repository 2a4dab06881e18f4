"""SwanLab: `run-…` folders with logs of lines, or with one log of frames."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import STOP, FilesSource, Stream, read_small
from toolkit.telemetry.importers.folders import Folder, Found, names_in
from toolkit.telemetry.importers.framing import leveldb_log, sqlite_view
from toolkit.telemetry.importers.framing.protobuf_wire import (
    BYTES,
    FIXED64,
    VARINT,
    WireError,
    double,
    fields,
    integer,
    parts,
    signed,
    text,
    timestamp,
)
from toolkit.telemetry.importers.json_text import parsed
from toolkit.telemetry.importers.source import (
    MAX_RECORD_BYTES,
    NO_TIME,
    Builder,
    SourceInfo,
    Status,
    run_info,
)
from toolkit.telemetry.importers.times import from_any
from toolkit.telemetry.importers.yaml_text import load

FORMAT: Final = "swanlab"
_MAGIC: Final = b":SWL" + struct.pack("<H", 0xE1D6)
_START, _FINISH, _COLUMN, _SCALAR, _CONSOLE = 10, 11, 12, 13, 16
_NAMES: Final = "runs.swanlab"
_RUN: Final = re.compile(r"run-\d{8}_\d{6}-")
_STATES: Final = {1: "finished", -1: "failed", 2: "failed"}
_MOST_TAGS: Final = 5_000


class SwanLabSource(FilesSource):
    """One run: the log of frames, or the files in `logs` if there is none."""

    def __init__(self, info: SourceInfo, folder: str, frames: Sequence[str], about: dict[str, Any]) -> None:
        super().__init__(info)
        self._folder = folder
        self._frames = list(frames)
        self._names: dict[str, str] = about.get("tags", {})
        self._state = _STATES.get(about.get("status", 0), "")
        self._has_config = False

    def streams(self) -> Sequence[Stream]:
        """Return the frames, which hold all metrics with their names; else the logs, a metric each."""
        self._read_config()
        return [Stream(name) for name in self._frames] or self._logs()

    def status(self, now: float) -> Status:
        """Return what the log says about the end, else what the database next to the run says."""
        found = super().status(now)
        return Status(self._state, last_sign=self._last_sign) if self._end is None and self._state else found

    def _logs(self) -> list[Stream]:
        top = f"{self._folder}/logs"
        return [
            Stream(f"{top}/{tag}/{name}", metric=self._names.get(tag, tag))
            for tag in names_in(self.info.root / top, of_folders=True)[:_MOST_TAGS]
            for name in names_in(self.info.root / top / tag)
            if name.endswith((".log", ".json")) and not name.startswith("_")
        ]

    def parse(self, stream: Stream, data: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:
        """Add lines, a whole JSON file, or frames."""
        if stream.path.endswith(".swanlab"):
            return self._parse_frames(stream, data, offset, state, out)
        if stream.path.endswith(".json"):
            return 0
        end = data.rfind(b"\n") + 1
        for line in data[:end].split(b"\n"):
            if line.strip():
                self._add_point(stream, parsed(line) if len(line) <= MAX_RECORD_BYTES else None, out)
        return end

    def at_end(self, stream: Stream, rest: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:  # noqa: ARG002
        """Read a whole JSON file, or a last line without its newline."""
        if stream.path.endswith(".swanlab"):
            self.cut_at(stream, offset)
            return 0
        found = parsed(rest) if len(rest) <= MAX_RECORD_BYTES else None
        if found is None:
            return 0
        points = found.get("data") if stream.path.endswith(".json") else [found]
        for point in points if type(points) is list else ():
            self._add_point(stream, point if type(point) is dict else None, out)
        return len(rest)

    def _add_point(self, stream: Stream, point: dict[str, Any] | None, out: Builder) -> None:
        if point is None or "index" not in point:
            out.pass_over("lines that are no point")
            return
        out.value(stream.metric, point["index"], from_any(point.get("create_time")), point.get("data"))

    # ------------------------------------------------------------ frames

    def _parse_frames(
        self, stream: Stream, data: bytes, offset: int, state: dict[str, Any], out: Builder
    ) -> int:
        if offset == 0:
            if not data.startswith(_MAGIC):
                out.pass_over("files without SwanLab's header")
                state[STOP] = True
                return len(data)
            if data[6:7] not in (b"\x01", b"\x02"):
                self.info.note(
                    f"{stream.path} has version {data[6] if len(data) > 6 else 0}, which is not known"
                )
                out.pass_over("logs of an unknown version")
                state[STOP] = True
                return len(data)
            if len(data) <= leveldb_log.HEADER:
                return 0
        found = leveldb_log.read(data, offset)
        if found.records:
            self.cut_at(stream, None)
        leveldb_log.stop_if_empty(found, len(data), state)
        if found.damaged:
            self.info.note(f"{stream.path} is damaged at byte {found.first_damage:,}")
            out.pass_over("damaged parts, up to the next block of 32 KiB", found.damaged)
        for record in found.records:
            try:
                if record[:1] == b"{":
                    self._add_json(record, out)
                else:
                    self._add_message(record, out)
            except WireError:
                out.pass_over("records that are no message")
        return max(found.end - offset, 0)

    def _add_json(self, record: bytes, out: Builder) -> None:
        """Take a record of version 1: {"type": ..., "data": {...}}."""
        found = parsed(record) or {}
        data = found.get("data")
        if type(data) is str:
            data = parsed(data)
        kind = str(found.get("type") or found.get("model_type") or "").lower()
        if type(data) is not dict:
            out.pass_over("records that are no object")
        elif kind == "scalar":
            metric = data.get("metric")
            point = metric if type(metric) is dict else data
            step, logged_at = data.get("step", point.get("index")), from_any(point.get("create_time"))
            out.value(str(data.get("key")), step, logged_at, point.get("data"))
        elif kind == "footer":
            self._end = Status(
                "finished" if data.get("success", True) else "failed", last_sign=self._last_sign
            )
        elif kind:
            out.not_number(f"{kind} (of the tool)")

    def _add_message(self, record: bytes, out: Builder) -> None:
        for number, wire, at, end in fields(record, 0, len(record)):
            if wire != BYTES:
                continue
            if number == _SCALAR:
                self._add_scalar(record, at, end, out)
            elif number == _START:
                self._read_start(record, at, end)
            elif number == _FINISH:
                is_well = integer(record, at, end, 1) == 1
                self._end = Status("finished" if is_well else "failed", last_sign=self._last_sign)
            elif number == _CONSOLE:
                out.not_number("lines of the console")
            elif number not in (2, _COLUMN):
                out.not_number(f"records of kind {number} (of the tool)")

    def _add_scalar(self, record: bytes, start: int, end: int, out: Builder) -> None:
        name, step, logged_at = "", 0, NO_TIME
        # Protobuf leaves out a value of zero.
        value: float | None = None
        for number, wire, at, stop in fields(record, start, end):
            if number == 1 and wire == BYTES:
                name = text(record, at, stop)
            elif number == 2 and wire == VARINT:
                step = signed(at)
            elif number == 4 and wire == BYTES:
                logged_at = timestamp(record, at, stop)
            elif number == 5 and wire == BYTES:
                value = 0.0
                for inner, inner_wire, place, _ in fields(record, at, stop):
                    if inner == 1 and inner_wire == FIXED64:
                        value = double(record, place)
        if name and value is not None:
            out.add(name, step, logged_at, value)
        else:
            out.pass_over("scalars without a name or value")

    def _read_start(self, record: bytes, start: int, end: int) -> None:
        for at, stop in parts(record, start, end, 1):
            self.info.group = text(record, at, min(stop, at + 1000))
        for at, stop in parts(record, start, end, 4):
            self.info.name = text(record, at, min(stop, at + 1000)) or self.info.name

    def _read_config(self) -> None:
        if self._has_config:
            return
        self._has_config = True
        try:
            found = load(read_small(self.info.root, f"{self._folder}/files/config.yaml", limit=1024**2))
        except OSError:
            return
        self.info.keep(
            (name, value["value"] if type(value) is dict and "value" in value else value)
            for name, value in found.items()
        )


# ---------------------------------------------------------------- detection


def sources_in(folder: Folder) -> Found:
    """Return the run of a `run-…` folder."""
    frames = sorted(
        name
        for name in folder.files
        if name.endswith(".swanlab") and folder.head(name, 16).startswith(_MAGIC)
    )
    run = folder.path.name
    has_logs = "files" in folder.folders and (
        "logs" in folder.folders or folder.path.parent.name == "swanlog"
    )
    if not frames and not (has_logs and _RUN.match(run)):
        return Found()
    about: dict[str, Any] = {}
    if folder.relative != "." and os.path.lexists(folder.path.parent / _NAMES):
        about = _about(folder.path.parent / _NAMES, run)
    source = _source(folder.root, folder.relative, [folder.below(name) for name in frames], about)
    return Found([source], frozenset(frames), frozenset({"logs", "files", "media", "console"}))


def source_of_file(path: Path, head: bytes) -> SwanLabSource | None:
    """Return the run of one log of frames that was named."""
    return _source(path.parent, "-", [path.name], {}) if head.startswith(_MAGIC) else None


def _source(root: Path, folder: str, frames: Sequence[str], about: dict[str, Any]) -> SwanLabSource:
    run = Path(folder).name if folder not in (".", "-") else root.name
    own = run if run.startswith("run-") else os.path.realpath(root / folder)
    pieces = [folder if folder != "-" else frames[0]]
    info = run_info(FORMAT, own, str(about.get("name") or run), root, pieces, run_id=run)
    info.writer = str(about.get("version", ""))[:100]
    if about.get("problem"):
        info.note(f"{_NAMES}: {about['problem']}")
    return SwanLabSource(info, folder, frames, about)


def _about(path: Path, run: str) -> dict[str, Any]:
    """Return what the database next to the runs says about one: its name, state, and names of numbered folders."""
    found: dict[str, Any] = {"tags": {}}
    try:
        with sqlite_view.opened(path, ("experiment", "tag")) as database:
            if not database.has("experiment", "id", "run_id", "name", "status", "version"):
                return found
            query = "SELECT id, name, status, version FROM experiment WHERE run_id = ? LIMIT 1"
            for number, name, status, version in database.rows(query, (run,)):
                found.update(name=name, status=status if type(status) is int else 0, version=version)
                if database.has("tag", "experiment_id", "name", "folder"):
                    tags = "SELECT folder, name FROM tag WHERE experiment_id = ? LIMIT 5000"
                    found["tags"] = {str(key): str(tag) for key, tag in database.rows(tags, (number,)) if key}
    except OSError as error:
        found["problem"] = str(error)[:200]
    return found
