"""TensorBoard event files."""

from __future__ import annotations

import math
import os
import re
import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import STOP, FilesSource, Stream
from toolkit.telemetry.importers.folders import Folder, Found, name_of, names_in
from toolkit.telemetry.importers.framing import tfrecord
from toolkit.telemetry.importers.framing.protobuf_wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    WireError,
    double,
    fields,
    integer,
    parts,
    signed,
    single,
    text,
)
from toolkit.telemetry.importers.source import (
    MAX_IMAGE_BYTES,
    MAX_NAME_CHARS,
    MAX_RECORD_BYTES,
    MAX_TEXT_CHARS,
    BlobRef,
    Builder,
    Event,
    Piece,
    SourceInfo,
    run_info,
)

FORMAT: Final = "tensorboard"
_NAME: Final = re.compile(r"tfevents\.(\d{9,11})\.(.*)$", re.DOTALL)
_PARTS_OF_A_RUN: Final = frozenset({"train", "training", "validation", "val", "eval", "test", "hparams"})
_HPARAMS: Final = "hparams"
_IMAGES: Final = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")
_FEW: Final = 64
"""Fewer records of one length than this are not checked."""
_CHECKED_AT_ONCE: Final = 16 * 1024**2
_LONGEST_CHECKED: Final = 64 * 1024
_TIME_FIELD: Final = 0x09
_STEP_FIELD: Final = 0x10
_SHORTEST: Final = 24
_LONGEST_STEP: Final = 19
_MAX_TAGS: Final = 20_000
_FIRST_FIELDS: Final = (b"\x09", b"\x1a", b"")
"""Of the first record: its time, or its version where the time is 0."""

# Fields of a value in a summary.
_TAG, _NUMBER, _IMAGE, _HISTOGRAM, _TENSOR, _METADATA = 1, 2, 4, 5, 8, 9
_COUNTED: Final = {3: "compressed histograms", 6: "audio"}

# DataType of a tensor: how its bytes are unpacked.
_TYPES: Final = {1: "f", 2: "d", 3: "i", 4: "B", 5: "h", 6: "b", 9: "q", 22: "I", 23: "Q"}


class TensorBoardSource(FilesSource):
    """The event files of one run: a folder, and folders below it that the same process wrote."""

    window = 16 * 1024**2

    def __init__(self, info: SourceInfo, folders: Sequence[str]) -> None:
        # Lightning writes its settings next to the event file.
        super().__init__(info, settings=[f"{folder}/hparams.yaml" for folder in folders[:1] or ["."]])
        self._folders = list(folders)
        self._is_one_file = not folders

    def streams(self) -> Sequence[Stream]:
        """Return the event files, each a session of its folder."""
        if self._is_one_file:
            return [Stream(self.info.pieces[0].path)]
        found = []
        for piece, folder in enumerate(self._folders):
            names = filter(_is_event_name, names_in(self.info.root / folder))
            for session, name in enumerate(names):
                found.append(Stream(f"{folder}/{name}" if folder != "." else name, piece, session))
        return found

    def parse(self, stream: Stream, data: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:
        """Add the records in `data`."""
        starts, lengths, end, is_damaged = tfrecord.frames(data)
        if starts:
            self.cut_at(stream, None)
        _Records(stream, data, offset, state, out, self.info).take(starts, lengths)
        if is_damaged:
            state[STOP] = True
            at = offset + end
            if not any(data[end:]):
                self.info.note(f"{stream.path}: only zero bytes from byte {at:,} on, as after a crash")
                out.pass_over("files that end in zero bytes", piece=stream.piece)
            else:
                self.info.note(f"{stream.path} is damaged at byte {at:,}; what comes after it cannot be read")
                out.pass_over("files that are damaged from some byte on", piece=stream.piece)
            return len(data)
        if end == 0 and len(data) >= tfrecord.HEADER:
            (length,) = struct.unpack_from("<Q", data)
            if length > MAX_RECORD_BYTES:
                size: int = length + tfrecord.HEADER + tfrecord.FOOTER
                if size < 256 * 1024**2:
                    out.pass_over("records of more than 16 MB", piece=stream.piece)
                    return size
        return end

    def at_end(self, stream: Stream, rest: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:  # noqa: ARG002
        """Say where a file was cut."""
        self.cut_at(stream, offset)
        return 0


_Points = tuple["array[int]", "array[float]", "array[float]"]
"""Steps, times and values."""


class _Records:
    """Takes the records of one piece of a file apart."""

    def __init__(
        self, stream: Stream, data: bytes, offset: int, state: dict[str, Any], out: Builder, info: SourceInfo
    ) -> None:
        self._stream = stream
        self._data = data
        self._offset = offset
        self._state = state
        self._out = out
        self._info = info
        self._plugins: dict[str, str] = state.setdefault("plugins", {})
        self._points: dict[str, _Points] = {}
        self._usual: dict[bytes, _Points] = {}
        """Where the points go of a record that differs from an earlier one in time, step and value alone."""

    def take(self, starts: list[int], lengths: list[int]) -> None:
        """Add every record."""
        damaged = _damaged(self._data, starts, lengths)
        if damaged:
            self._out.pass_over("damaged records", len(damaged), piece=self._stream.piece)
        for start, length in zip(starts, lengths, strict=True):
            if start not in damaged:
                self._add_record(start, start + length)
        for tag, (steps, times, values) in self._points.items():
            column = self._out.column(tag, piece=self._stream.piece, session=self._stream.session)
            if column is not None:
                column.steps.extend(steps)
                column.times.extend(times)
                column.values.extend(values)

    def _add_record(self, start: int, end: int) -> None:
        """Add one record. Usually that is a time, a step and one scalar, whose four bytes are the last."""
        data = self._data
        after_step = 0
        if end - start > _SHORTEST and data[start] == _TIME_FIELD and data[start + 9] == _STEP_FIELD:
            after_step = start + 11
            while data[after_step - 1] >= 0x80 and after_step < start + _LONGEST_STEP:
                after_step += 1
            if data[after_step - 1] >= 0x80:
                after_step = 0
            elif (points := self._usual.get(data[after_step : end - 4])) is not None:
                step = 0
                for at in range(after_step - 1, start + 9, -1):
                    step = step << 7 | data[at] & 0x7F
                points[0].append(step)
                points[1].append(double(data, start + 1))
                points[2].append(single(data, end - 4))
                return
        tag = self._add_any_record(start, end)
        if tag is not None and after_step and len(self._usual) < _MAX_TAGS:
            self._usual[data[after_step : end - 4]] = self._points[tag]

    def _add_any_record(self, start: int, end: int) -> str | None:
        """Add one record, whatever it has; return the tag of its one scalar if that is four bytes at its end."""
        data = self._data
        timestamp, step = math.nan, 0
        summaries: list[tuple[int, int]] = []
        try:
            for number, wire, at, stop in fields(data, start, end):
                if number == 1 and wire == FIXED64:
                    timestamp = double(data, at)
                elif number == 2 and wire == VARINT:
                    step = signed(at)
                elif number == 5 and wire == BYTES:
                    summaries.append((at, stop))
                elif number == 3 and wire == BYTES:
                    if not self._info.writer:
                        self._info.writer = text(data, at, min(stop, at + 100))
                elif number in (4, 9) and wire == BYTES:
                    self._other("graphs", "__run_graph__")
                elif number == 8 and wire == BYTES:
                    self._other("run metadata", "")
            found = (place for first, last in summaries for place in parts(data, first, last, 1))
            values = list(islice(found, _MAX_TAGS))
            tags = [self._add_value(at, stop, step, timestamp) for at, stop in values]
        except WireError:
            self._bad_record(start, end)
            return None
        return tags[0] if len(tags) == 1 and values[0][1] == end else None

    def _bad_record(self, start: int, end: int) -> None:
        length = end - start
        # In Python a checksum takes a second for 16 MB.
        is_intact = length <= _LONGEST_CHECKED and tfrecord.is_intact(self._data, start, length)
        reason = "records that are no event" if is_intact else "damaged records"
        self._out.pass_over(reason, piece=self._stream.piece)

    def _add_value(self, start: int, end: int, step: int, timestamp: float) -> str | None:
        """Add one value; return its tag if it is a number in the last four bytes."""
        data = self._data
        places = {
            number: (at, stop)
            for number, wire, at, stop in fields(data, start, end)
            if wire == (FIXED32 if number == _NUMBER else BYTES)
        }
        tag = text(data, *places[_TAG]) if _TAG in places else ""
        number_at = places[_NUMBER][0] if _NUMBER in places else -1
        plugin, content = _plugin_of(data, *places[_METADATA]) if _METADATA in places else ("", None)
        if plugin:
            if len(self._plugins) < _MAX_TAGS and len(tag) <= MAX_NAME_CHARS and tag not in self._plugins:
                self._plugins[tag] = plugin
                self._usual.clear()
        else:
            plugin = self._plugins.get(tag, "")
        if number_at >= 0:
            self._point(tag, step, timestamp, single(data, number_at))
        elif _TENSOR in places:
            number_at = self._add_tensor(tag, plugin, places[_TENSOR], step, timestamp)
        elif _IMAGE in places:
            self._add_image(tag, places[_IMAGE], step, timestamp)
        elif _HISTOGRAM in places:
            self._other("histograms", tag)
            self._event("histogram", tag, step, timestamp, payload=_histogram(data, *places[_HISTOGRAM]))
        else:
            for number in _COUNTED.keys() & places.keys():
                self._other(_COUNTED[number], tag)
        if plugin == "hparams" and content is not None:
            self._other("hparams", tag)
            self._add_hparams(*content)
            return None
        return tag if number_at == end - 4 else None

    def _add_tensor(self, tag: str, plugin: str, tensor: tuple[int, int], step: int, timestamp: float) -> int:
        """Add a tensor; return where its number is if that has four bytes, else -1."""
        data = self._data
        if plugin in ("", "scalars"):
            at, kind = _element_of(data, *tensor)
            if kind:
                self._point(tag, step, timestamp, float(struct.unpack_from(f"<{kind}", data, at)[0]))
                return at if kind == "f" else -1
            value = _varint_element(data, *tensor)
            if value is not None:
                self._point(tag, step, timestamp, float(value))
                return -1
        self._other(plugin or "tensors", tag)
        strings = list(islice(parts(data, *tensor, 8), 1000)) if plugin in ("text", "images") else []
        if plugin == "text" and strings:
            words = "\n".join(text(data, at, min(stop, at + MAX_TEXT_CHARS)) for at, stop in strings[:100])
            name = tag.removesuffix("/text_summary")
            self._event("text", name, step, timestamp, payload=words[:MAX_TEXT_CHARS])
        # Width and height come before the images.
        for at, stop in strings[2:] if plugin == "images" else ():
            self._image(tag, at, stop, step, timestamp)
        return -1

    def _add_image(self, tag: str, image: tuple[int, int], step: int, timestamp: float) -> None:
        self._other("images", tag)
        for at, stop in parts(self._data, *image, 4):
            self._image(tag, at, stop, step, timestamp)

    def _image(self, tag: str, at: int, end: int, step: int, timestamp: float) -> None:
        if end - at > MAX_IMAGE_BYTES or not self._data.startswith(_IMAGES, at):
            self._out.pass_over("images that are too large or of another kind", piece=self._stream.piece)
            return
        place = BlobRef(path=self._stream.path, offset=self._offset + at, length=end - at)
        self._event("image", tag, step, timestamp, blob=place)

    def _event(self, kind: str, name: str, step: int, timestamp: float, **more: Any) -> None:
        piece, session = self._stream.piece, self._stream.session
        self._out.event(
            Event(kind=kind, piece=piece, session=session, name=name, step=step, time=timestamp, **more)
        )

    def _add_hparams(self, start: int, end: int) -> None:
        """Read HParamsPluginData: session_start_info (3) has a map of names to values."""
        data = self._data
        for at, stop in parts(data, start, end, 3):
            for first, last in parts(data, at, stop, 1):
                name, value = "", None
                for key, key_wire, place, place_end in fields(data, first, last):
                    if key == 1 and key_wire == BYTES:
                        name = text(data, place, min(place_end, place + 1000))
                    elif key == 2 and key_wire == BYTES:
                        value = _struct_value(data, place, place_end)
                if name:
                    self._info.keep([(name, value)])

    def _point(self, tag: str, step: int, timestamp: float, value: float) -> None:
        steps, times, values = self._points.setdefault(tag, (array("q"), array("d"), array("d")))
        steps.append(step)
        times.append(timestamp)
        values.append(value)

    def _other(self, plugin: str, tag: str) -> None:
        self._out.not_number(f"{plugin}: {tag}" if tag else plugin, piece=self._stream.piece)


# ---------------------------------------------------------------- parts of a message


def _plugin_of(data: bytes, start: int, end: int) -> tuple[str, tuple[int, int] | None]:
    """Return the plugin's name in SummaryMetadata, and where its content is."""
    for at, stop in parts(data, start, end, 1):
        name = next((text(data, *place)[:200] for place in parts(data, at, stop, 1)), "")
        return name, next(parts(data, at, stop, 2), None)
    return "", None


def _element_of(data: bytes, start: int, end: int) -> tuple[int, str]:
    """Return where the one element of a tensor is and how to unpack it; ("" for any other tensor)."""
    kind = 0
    place, found = 0, ""
    for number, wire, at, stop in fields(data, start, end):
        if number == 1 and wire == VARINT:
            kind = at
        elif number == 2 and wire == BYTES:
            if not _is_one_element(data, at, stop):
                return 0, ""
        elif number == 4 and wire == BYTES:
            code = _TYPES.get(kind, "")
            if not code or stop - at != struct.calcsize(code):
                return 0, ""
            place, found = at, code
        elif number in (5, 6):
            code = "f" if number == 5 else "d"
            if wire == BYTES and stop - at != struct.calcsize(code):
                return 0, ""
            if found or wire not in (BYTES, FIXED32, FIXED64):
                return 0, ""
            place, found = at, code
    return place, found


def _varint_element(data: bytes, start: int, end: int) -> int | None:
    """Return the one element of a tensor of integers."""
    found = None
    for number, wire, at, stop in fields(data, start, end):
        if number == 2 and wire == BYTES and not _is_one_element(data, at, stop):
            return None
        if number in (7, 10, 11):
            if found is not None:
                return None
            if wire == VARINT:
                found = signed(at)
            elif wire == BYTES and 0 < stop - at <= 10:
                value = shift = 0
                for byte in data[at:stop]:
                    value |= (byte & 0x7F) << shift
                    shift += 7
                found = signed(value & (2**64 - 1)) if data[stop - 1] < 0x80 else None
    return found


def _is_one_element(data: bytes, start: int, end: int) -> bool:
    """Return whether a TensorShape has one element: no dimensions, or all of size 1."""
    dimensions = (integer(data, at, stop, 1) for at, stop in parts(data, start, end, 2))
    return all(size in (None, 1) for size in dimensions)


def _histogram(data: bytes, start: int, end: int) -> dict[str, Any]:
    """Return a HistogramProto; edges and counts at most 1,000 each."""
    names = {1: "min", 2: "max", 3: "num", 4: "sum", 5: "sum_squares"}
    found: dict[str, Any] = {}
    for number, wire, at, stop in fields(data, start, end):
        if number in names and wire == FIXED64:
            found[names[number]] = double(data, at)
        elif number in (6, 7) and wire == BYTES:
            count = min((stop - at) // 8, 1000)
            found["edges" if number == 6 else "counts"] = list(struct.unpack_from(f"<{count}d", data, at))
    return found


def _struct_value(data: bytes, start: int, end: int) -> Any:
    """Return a google.protobuf.Value: a number, a text or a truth value."""
    for number, wire, at, stop in fields(data, start, end):
        if number == 2 and wire == FIXED64:
            return double(data, at)
        if number == 3 and wire == BYTES:
            return text(data, at, min(stop, at + MAX_TEXT_CHARS))
        if number == 4 and wire == VARINT:
            return bool(at)
    return None


def _damaged(data: bytes, starts: list[int], lengths: list[int]) -> set[int]:
    """Return where records begin whose checksum is wrong; only many of one length are worth the time."""
    found: set[int] = set()
    if len(starts) < _FEW:
        return found
    try:
        import numpy as np
    except ImportError:
        return found
    content, all_starts, all_lengths = np.frombuffer(data, np.uint8), np.array(starts), np.array(lengths)
    table = np.array(tfrecord.CRC_TABLE, np.uint32)
    sizes, counts = np.unique(all_lengths, return_counts=True)
    for length in sizes[(counts >= _FEW) & (sizes <= _LONGEST_CHECKED)].tolist():
        places = all_starts[all_lengths == length]
        windows = np.lib.stride_tricks.sliding_window_view(content, length + tfrecord.FOOTER)
        for part in np.array_split(places, 1 + len(places) * length // _CHECKED_AT_ONCE):
            rows = windows[part]
            crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
            for column in np.ascontiguousarray(rows[:, :length].T):
                crc = crc >> np.uint32(8) ^ table.take(column ^ crc.astype(np.uint8))
            crc ^= np.uint32(0xFFFFFFFF)
            crc = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)
            written = np.ascontiguousarray(rows[:, length:]).view("<u4").ravel()
            found.update(part[crc != written].tolist())
    return found


# ---------------------------------------------------------------- detection


def _is_event_name(name: str) -> bool:
    return "tfevents" in name and not name.endswith((".profile-empty", ".lock", ".tmp"))


def sources_in(folder: Folder) -> Found:
    """Return the run of the event files in one folder."""
    names = sorted(name for name in folder.files if _is_event_name(name))
    if not names or not any(_looks_right(folder.head(name)) for name in names[:50]):
        return Found()
    pieces = [Piece(folder.relative)]
    return Found([_source(folder.path, folder.path.name, folder.root, pieces, [folder.relative])])


def source_of_file(path: Path, head: bytes) -> TensorBoardSource | None:
    """Return the run of one event file that was named."""
    if not _is_event_name(path.name) or not _looks_right(head):
        return None
    return _source(path, path.parent.name or path.name, path.parent, [Piece(path.name)], [])


def _source(
    path: Path, name: str, root: Path, pieces: list[Piece], folders: Sequence[str]
) -> TensorBoardSource:
    return TensorBoardSource(run_info(FORMAT, os.path.realpath(path), name, root, pieces), folders)


def _looks_right(head: bytes) -> bool:
    if not head or head.startswith(b"version https://git-lfs"):
        return True
    if len(head) < tfrecord.HEADER:
        return False
    length, checksum = struct.unpack_from("<QI", head)
    return bool(tfrecord.checksum_of_length(length) == checksum) and head[12:13] in _FIRST_FIELDS


def merged(found: Sequence[TensorBoardSource]) -> list[TensorBoardSource]:
    """Put folders that are parts of one run together: those of one process, and `train`, `validation` and the like."""
    by_path = {source.info.root / source.info.pieces[0].path: source for source in found}
    writers = {path: _writers(path) for path in by_path}
    parts = _parts_below(found[0].info.root, by_path)
    children: dict[Path, list[Path]] = {}
    for path, source in by_path.items():
        top = _top_of(path, source.info.root, by_path, writers, parts)
        children.setdefault(top, []).append(path)
    result = []
    for top, paths in children.items():
        first = by_path[paths[0]].info
        paths.sort(key=lambda path: (path != top, path))
        folders = [by_path[path].info.pieces[0].path for path in paths]
        prefixes = ["" if path == top else f"{path.relative_to(top).as_posix()}/" for path in paths]
        name = f"{top.parent.name}/{top.name}" if top.name.lower() in _PARTS_OF_A_RUN else name_of(top)
        pieces = [Piece(folder, prefix) for folder, prefix in zip(folders, prefixes, strict=True)]
        result.append(_source(top, name, first.root, pieces, folders))
    return result


def _top_of(
    path: Path,
    root: Path,
    known: dict[Path, TensorBoardSource],
    writers: dict[Path, set[str]],
    parts: dict[Path, set[str]],
) -> Path:
    """Return the folder of the run that the event files in `path` are a part of."""
    top = path
    for above in path.parents:
        if above in known and writers[above] & writers[path]:
            top = above
        if above == root:
            break
    if top != path:
        return top
    # A lone `train` may be a run of its own, next to `train2`.
    while top != root and top.name.lower() in _PARTS_OF_A_RUN:
        above = top.parent
        if above not in known and len(parts[above]) < 2 and top.name.lower() != _HPARAMS:
            break
        top = above
    return top


def _parts_below(root: Path, paths: Iterable[Path]) -> dict[Path, set[str]]:
    """Return for each folder which of the folders in it are called like parts of a run and lead to event files."""
    found: dict[Path, set[str]] = {}
    for path in paths:
        here = path
        while here != root:
            if here.name.lower() in _PARTS_OF_A_RUN:
                found.setdefault(here.parent, set()).add(here.name.lower())
            found.setdefault(here.parent, set())
            here = here.parent
    return found


def _writers(folder: Path) -> set[str]:
    """Return host and process of the event files in `folder`, or their host and second where no process is named."""
    found: set[str] = set()
    for name in names_in(folder):
        match = _NAME.search(name)
        if match:
            parts = match[2].split(".")
            numbers = [part for part in parts[1:] if part.isdigit()]
            # host.pid.count, or host alone (tensorboardX): then the same second is the same process.
            found.add(f"{parts[0]} {numbers[-2]}" if len(numbers) >= 2 else f"{match[2]} {match[1]}")
    return found
