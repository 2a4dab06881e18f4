"""W&B: the `.wandb` file of an offline or online run."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import STOP, FilesSource, Stream
from toolkit.telemetry.importers.folders import Folder, Found
from toolkit.telemetry.importers.framing import leveldb_log
from toolkit.telemetry.importers.framing.protobuf_wire import (
    BYTES,
    WireError,
    fields,
    integer,
    parts,
    text,
    timestamp,
)
from toolkit.telemetry.importers.json_text import loaded
from toolkit.telemetry.importers.source import (
    MAX_RECORD_BYTES,
    MAX_TEXT_CHARS,
    NO_STEP,
    NO_TIME,
    SYSTEM,
    BlobRef,
    Builder,
    Event,
    SourceInfo,
    Status,
    as_number,
    as_step,
    flattened,
    run_info,
)

FORMAT: Final = "wandb"
_MAGIC: Final = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
_HISTORY, _OUTPUT, _CONFIG, _STATS, _ARTIFACT, _TB, _ALERT = 2, 4, 5, 7, 8, 9, 10
_METRIC, _OUTPUT_RAW, _RUN, _EXIT, _HEADER = 12, 13, 17, 18, 21
_COUNTED: Final = {
    _OUTPUT: "lines of the console",
    _OUTPUT_RAW: "lines of the console",
    _ARTIFACT: "artifacts",
    _ALERT: "alerts",
}
_TYPE: Final = b"._type"
_MOST_ITEMS: Final = 50_000
"""Values of one row; only some of them can be metrics."""
_MEDIA: Final = {"image-file": "image", "table-file": "table", "histogram": "histogram"}


class WandbSource(FilesSource):
    """One run: every file with its id, each a session."""

    def __init__(self, info: SourceInfo, paths: Sequence[str], copies: frozenset[str] = frozenset()) -> None:
        super().__init__(info)
        self._paths = list(paths)
        self._copies = copies

    def streams(self) -> Sequence[Stream]:
        """Return its files."""
        return [
            Stream(path, piece, session=piece, repeated=path in self._copies)
            for piece, path in enumerate(self._paths)
        ]

    def parse(self, stream: Stream, data: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:
        """Add the records in `data`."""
        if offset == 0 and not data.startswith(_MAGIC):
            out.pass_over("files without W&B's header", piece=stream.piece)
            state[STOP] = True
            return len(data)
        if offset == 0 and len(data) == leveldb_log.HEADER:
            return 0
        found = leveldb_log.read(data, offset)
        if found.damaged:
            self.info.note(f"{stream.path} is damaged at byte {found.first_damage:,}")
            out.pass_over("damaged parts, up to the next block of 32 KiB", found.damaged, piece=stream.piece)
        if found.records:
            self.cut_at(stream, None)
        leveldb_log.stop_if_empty(found, len(data), state)
        reading = _Reading(stream, state, out, self)
        for record in found.records:
            if len(record) > MAX_RECORD_BYTES:
                out.pass_over("records of more than 16 MB", piece=stream.piece)
                continue
            try:
                reading.take(record)
            except WireError:
                out.pass_over("records that are no message", piece=stream.piece)
        return max(found.end - offset, 0)

    def at_end(self, stream: Stream, rest: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:  # noqa: ARG002
        """Say where a file was cut."""
        if rest != _MAGIC:
            self.cut_at(stream, offset)
        return 0

    def set_end(self, code: int | None) -> None:
        """Keep how the run exited; its last file counts, and None is a start."""
        ended = Status("failed" if code else "finished", last_sign=self._last_sign)
        self._end = None if code is None else ended


class _Reading:
    """Takes the records of one file."""

    def __init__(self, stream: Stream, state: dict[str, Any], out: Builder, source: WandbSource) -> None:
        self._stream = stream
        self._state = state
        self._out = out
        self._source = source
        self._info = source.info
        self._place: dict[str, Any] = {
            "piece": stream.piece,
            "session": stream.session,
            "repeated": stream.repeated,
        }
        self._columns: dict[bytes, _Columns] = {}
        self._takes: dict[int, Callable[[bytes, int, int], None]] = {
            _HISTORY: self._history,
            _STATS: self._stats,
            _RUN: self._run,
            _CONFIG: self._config,
            _METRIC: self._metric,
            _EXIT: self._exit,
            _HEADER: self._header,
            _TB: self._tensorboard,
        }

    def take(self, record: bytes) -> None:
        for number, wire, at, end in fields(record, 0, len(record)):
            if wire == BYTES and number in self._takes:
                self._takes[number](record, at, end)
            elif wire == BYTES and number in _COUNTED:
                self._out.not_number(_COUNTED[number], piece=self._stream.piece)

    # ------------------------------------------------------------ numbers

    def _history(self, record: bytes, start: int, end: int) -> None:
        items, step = _items(record, start, end)
        logged_at = NO_TIME
        numbers: list[tuple[_Columns, float]] = []
        others: list[tuple[bytes, bytes]] = []
        columns = self._columns
        for key, raw in items:
            try:
                # Most values are plain numbers; the words for others are quoted or not.
                value = float(raw) if raw[0] < 0x3A else _WORDS[raw]
            except (ValueError, KeyError, IndexError):
                others.append((key, raw))
                continue
            column = columns.get(key)
            if column is not None:
                numbers.append((column, value))
            elif key == b"_step":
                step = as_step(value)
            elif key == b"_timestamp":
                logged_at = value
            elif key != b"_runtime":
                column = self._column(key)
                if column is not None:
                    numbers.append((column, value))
        for (add_step, add_time, add_value), value in numbers:
            add_step(step)
            add_time(logged_at)
            add_value(value)
        if others:
            media = self._add_media(others, step, logged_at)
            for key, raw in others:
                is_part = key.rpartition(b".")[0] in media
                self._other_value(text(key, 0, len(key)), raw, step, logged_at, is_part=is_part)

    def _add_media(self, items: list[tuple[bytes, bytes]], step: int, logged_at: float) -> set[bytes]:
        """Put images and the like together, whose fields are items of their own; return their names."""
        media: dict[bytes, dict[str, Any]] = {
            key[: -len(_TYPE)]: {} for key, _ in items if key.endswith(_TYPE)
        }
        for key, raw in items:
            name, _, part = key.rpartition(b".")
            if name in media:
                media[name][text(part, 0, len(part))] = loaded(raw)
        for name, value in media.items():
            self._media(text(name, 0, len(name)), value, step, logged_at)
        return set(media)

    def _column(self, key: bytes) -> _Columns | None:
        column = self._out.column(text(key, 0, len(key)), **self._place)
        if column is None:
            return None
        self._columns[key] = found = (column.steps.append, column.times.append, column.values.append)
        return found

    def _other_value(self, key: str, raw: bytes, step: int, logged_at: float, *, is_part: bool) -> None:
        value = loaded(raw)
        if type(value) is dict:
            self._media(key, value, step, logged_at)
        for name, leaf in flattened({key: value}):
            is_number = self._out.value(name, step, logged_at, leaf, **self._place)
            if not is_number and type(leaf) is str and name == key and not is_part:
                self._event("text", key, step, logged_at, leaf[:MAX_TEXT_CHARS])

    def _media(self, key: str, value: dict[str, Any], step: Any, logged_at: float) -> None:
        kind = value.get("_type")
        place = value.get("path")
        if kind in ("image-file", "table-file") and type(place) is str and len(place) < 1000:
            folder = os.path.dirname(self._stream.path)
            ref = BlobRef(path=f"{folder}/files/{place}" if folder else f"files/{place}")
            self._event(_MEDIA[kind], key, step, logged_at, {"caption": value.get("caption")}, ref)
        elif kind == "histogram":
            payload = {"counts": value.get("values"), "edges": value.get("bins")}
            self._event("histogram", key, step, logged_at, payload)

    def _event(
        self, kind: str, name: str, step: Any, logged_at: float, payload: Any, blob: BlobRef | None = None
    ) -> None:
        piece, session = self._stream.piece, self._stream.session
        step = step if type(step) is int else NO_STEP
        about: dict[str, Any] = {"name": name, "step": step, "time": logged_at, "payload": payload}
        self._out.event(Event(kind=kind, piece=piece, session=session, blob=blob, **about))

    def _stats(self, record: bytes, start: int, end: int) -> None:
        logged_at = NO_TIME
        for number, wire, at, stop in fields(record, start, end):
            if number == 2 and wire == BYTES:
                logged_at = timestamp(record, at, stop)
            elif number == 3 and wire == BYTES:
                key, raw = _item(record, at, stop)
                for name, leaf in flattened({key: loaded(raw)}):
                    value = as_number(leaf)
                    if value is not None:
                        self._out.add(name, NO_STEP, logged_at, value, kind=SYSTEM, **self._place)

    # ------------------------------------------------------------ what the run is

    def _run(self, record: bytes, start: int, end: int) -> None:
        info = self._info
        self._source.set_end(None)
        for number, wire, at, stop in fields(record, start, end):
            if wire != BYTES:
                continue
            if number == 8:
                info.name = text(record, at, stop)[:1000] or info.name
            elif number == 3:
                info.group = text(record, at, stop)[:1000]
            elif number == 6:
                info.parent = text(record, at, stop)[:1000]
            elif number == 4:
                self._config(record, at, stop)
            elif number == 9:
                info.note(f"notes: {text(record, at, stop)[:2000]}")
            elif number == 10:
                tag = text(record, at, stop)[:200]
                if tag not in info.tags and len(info.tags) < 200:
                    info.tags.append(tag)

    def _exit(self, record: bytes, start: int, end: int) -> None:
        self._source.set_end(integer(record, start, end, 1) or 0)

    def _config(self, record: bytes, start: int, end: int) -> None:
        for at, stop in parts(record, start, end, 1):
            key, raw = _item(record, at, stop)
            value = loaded(raw)
            if key != "_wandb":
                # Old versions wrap each value: {"desc": ..., "value": ...}.
                is_wrapped = type(value) is dict and "value" in value and set(value) <= {"desc", "value"}
                self._info.keep([(key, value["value"] if is_wrapped else value)])

    def _metric(self, record: bytes, start: int, end: int) -> None:
        name = axis = ""
        for number, wire, at, stop in fields(record, start, end):
            if wire == BYTES and number in (1, 2):
                name = text(record, at, stop)[:1000]
            elif wire == BYTES and number == 4:
                axis = text(record, at, stop)[:1000]
        if name and axis and len(self._info.axes) < 5_000:
            self._info.axes[name] = axis

    def _header(self, record: bytes, start: int, end: int) -> None:
        for at, stop in parts(record, start, end, 1):
            for first, last in parts(record, at, stop, 1):
                self._info.writer = text(record, first, min(last, first + 100))

    def _tensorboard(self, record: bytes, start: int, end: int) -> None:
        for at, stop in parts(record, start, end, 1):
            folder = text(record, at, min(stop, at + 1000))
            self._info.note(f"its metrics are also in TensorBoard files, in {folder}")


_Columns = tuple[Callable[[int], None], Callable[[float], None], Callable[[float], None]]
"""What appends step, time and value to a column."""

_WORDS: Final = {
    **dict.fromkeys((b"NaN", b'"NaN"'), math.nan),
    **dict.fromkeys((b"Infinity", b'"Infinity"'), math.inf),
    b'"-Infinity"': -math.inf,
}


def _items(record: bytes, start: int, end: int) -> tuple[list[tuple[bytes, bytes]], int]:
    items = []
    step = NO_STEP
    for number, wire, at, stop in fields(record, start, end):
        if number == 1 and wire == BYTES:
            key, value = _item(record, at, stop)
            items.append((key.encode("utf-8", "replace"), value))
            if len(items) >= _MOST_ITEMS:
                break
        elif number == 2 and wire == BYTES:
            step = integer(record, at, stop, 1) or 0
    return items, step


def _item(record: bytes, start: int, end: int) -> tuple[str, bytes]:
    key = ""
    nested: list[str] = []
    value = b""
    for number, wire, at, stop in fields(record, start, end):
        if wire == BYTES:
            if number == 1:
                key = text(record, at, stop)
            elif number == 16:
                value = record[at:stop]
            elif number == 2:
                nested.append(text(record, at, stop))
    return (".".join(nested) if nested else key), value


# ---------------------------------------------------------------- detection


def sources_in(folder: Folder) -> Found:
    """Return a run for each `.wandb` file in one folder; `merged` puts those of one id together."""
    names = sorted(name for name in folder.files if name.endswith(".wandb"))
    found = []
    for name in names[:1000]:
        head = folder.head(name)
        if not folder.files[name] or head.startswith((_MAGIC, b"version https://git-lfs")):
            found.append(_source(folder.root, folder.below(name), head))
    return Found(list(found), frozenset(names))


def source_of_file(path: Path, head: bytes) -> WandbSource | None:
    """Return the run of one file that was named."""
    return _source(path.parent, path.name, head) if head.startswith(_MAGIC) else None


def _source(root: Path, relative: str, head: bytes) -> WandbSource:
    name = Path(relative).name
    run_id = name.removesuffix(".wandb").removeprefix("run-")
    project = _project_in(head)
    info = run_info(FORMAT, f"{project}/{run_id}", run_id, root, [relative])
    info.run_id, info.group = run_id, project
    return WandbSource(info, [relative])


def _project_in(head: bytes) -> str:
    """Return the project that the run record at the start of a file names; empty if it is further on."""
    for record in leveldb_log.read(head, 0).records if head.startswith(_MAGIC) else ():
        try:
            for at, end in parts(record, 0, len(record), _RUN):
                for first, last in parts(record, at, end, 3):
                    return text(record, first, min(last, first + 1000))
        except WireError:
            pass
    return ""


def merged(found: Sequence[WandbSource]) -> list[WandbSource]:
    """Put the files of one run id together, in order of their folders' times; copies of a file count once."""
    by_id: dict[tuple[str, str], list[WandbSource]] = {}
    projects: dict[str, set[str]] = {}
    for source in found:
        projects.setdefault(source.info.run_id, set()).add(source.info.group)
    for source in found:
        # A file without a run record is a start of the run with its id, if there is only one.
        known = projects[source.info.run_id] - {""}
        group = source.info.group or (next(iter(known)) if len(known) == 1 else "")
        by_id.setdefault((group, source.info.run_id), []).append(source)
    result = []
    for (project, run_id), sources in by_id.items():
        paths = sorted((source.info.pieces[0].path for source in sources), key=_age)
        copies = {path for path in paths if "latest-run" in Path(path).parts and len(paths) > 1}
        root = sources[0].info.root
        info = run_info(FORMAT, f"{project}/{run_id}", run_id, root, paths)
        info.run_id, info.group = run_id, project
        result.append(WandbSource(info, paths, frozenset(copies)))
    return result


def _age(path: str) -> tuple[str, str]:
    """Sort by the time in the folder's name: run-20221103_231209-id, offline-run-20221103_231209-id."""
    folder = Path(path).parent.name
    digits = "".join(char for char in folder.removeprefix("offline-")[:20] if char.isdigit())
    return digits, path
