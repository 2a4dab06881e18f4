"""Writes spans and events to a file in the format of OneLogger's own file exporter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.telemetry.mirrors.shared.scalars import plain_attributes
from toolkit.telemetry.mirrors.shared.span_filter import SpanFilter, SpanSelection
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.layout import make_folders
from toolkit.telemetry.runfolder.records import ERROR, LOST, SPAN, SPAN_EVENT, SPAN_START, Record
from toolkit.telemetry.runfolder.safefile import NO_FILE, identity_of, open_to_write, write_all
from toolkit.telemetry.timing.names import ONE_LOGGER_NAMES

_EARLY_EVENTS_KEPT: Final = 1_000
_LATEST_MSEC: Final = 2**62


class OneLoggerFileExporter:
    """Appends one JSON line to `path` for each start, stop, event and error, under OneLogger's names.

    Unlike OneLogger's, a line also names its run and session, and a span's line its parent. A resumed run appends to
    the file. Secrets are masked.
    """

    name = "one_logger_file"

    def __init__(
        self, path: Path, *, run_id: str, span_filter: SpanFilter | None = None, mode: int = 0o600
    ) -> None:
        # The training script may change its working folder later.
        self._path = Path(os.path.abspath(path))
        self._run_id = run_id
        self._mode = mode
        self._identity = NO_FILE
        self._spans = SpanSelection(span_filter)
        self._masker = Masker()
        self._count = 0
        self._unwritten: list[bytes] = []
        self._begun: Record | None = None
        self._announced: set[str] = set()
        self._early: dict[str, list[Record]] = {}
        self._early_count = 0

    def write(self, batch: Sequence[Record]) -> None:
        """Append the spans of `batch`. Raises OSError if the file system did not take it."""
        self._masker = Masker()
        self._put_all(self._spans.take(batch))

    def close(self) -> None:
        """Append the spans that were still held back. Raises OSError if the file system did not take it."""
        rest = self._spans.rest()
        for span_id in list(self._early):
            # Its span has no record.
            self._announced.add(span_id)
            rest += self._take_early(span_id)
        self._put_all(rest)

    def _put_all(self, records: Sequence[Record]) -> None:
        for record in records:
            event = record.get("event")
            if event == SPAN_START:
                self._put_start(record)
            elif event == SPAN:
                self._put_end(record)
            elif event == SPAN_EVENT:
                self._put_event(record)
            elif (event == LOST or (event == ERROR and record.get("source") == "telemetry")) and isinstance(
                record.get("time"), (int, float)
            ):  # the file may contain lines of other programs
                self._put_failure(record)
        # OneLogger holds a start back until something follows it; a kill would then lose it.
        self._put_begun()
        if self._unwritten:
            self._append(b"".join(self._unwritten))
            self._unwritten.clear()

    def _put_start(self, record: Record) -> None:
        self._put_begun()
        self._begun = record
        self._announced.add(record["id"])
        for early in self._take_early(record["id"]):
            self._put_event(early)

    def _put_begun(self) -> None:
        if self._begun is not None:
            record, self._begun = self._begun, None
            self._put({**self._span_line("start", record), "start_event": _start_event(record)}, record)

    def _put_end(self, record: Record) -> None:
        span_id = record["id"]
        has_error = isinstance(record.get("error"), dict)
        if span_id not in self._announced and (has_error or span_id in self._early):
            # OneLogger writes a span before the events inside it.
            self._put_start(record)
        if has_error:
            self._put_begun()
            error = {"type": "application_error", "span_id": span_id, "event": self._error_event(record)}
            self._put(error, record)
        if self._begun is not None and self._begun["id"] == span_id:
            # Nothing came between its start and its end: one line for both.
            self._begun = None
            self._announced.discard(span_id)
        self._put_begun()
        if span_id in self._announced:
            self._announced.discard(span_id)
            line = self._span_line("stop", record)
        else:
            line = {**self._span_line("complete", record), "start_event": _start_event(record)}
        self._put({**line, "stop_event": _event("span_stop", _end_of(record), {})}, record)

    def _put_event(self, record: Record) -> None:
        span_id = record["span_id"]
        if span_id not in self._announced and self._early_count < _EARLY_EVENTS_KEPT:
            self._early.setdefault(span_id, []).append(record)
            self._early_count += 1
            return
        self._put_begun()
        event = _event(record["name"], record["time"], self._plain(record))
        self._put({"type": "event", "span_id": span_id, "event": event}, record)

    def _put_failure(self, record: Record) -> None:
        if record["event"] == LOST:
            message = f"{record.get('records')} records were lost: {record.get('reason')}"
        else:
            message = f"{record.get('doing')}: {record.get('message')}"
        attributes = {
            "error_message": self._masker.mask(message),
            "telemetry_data_error_type": "incomplete_telemetry_data",
        }
        event = _event("telemetry_data_error", record["time"], attributes)
        self._put({"type": "telemetry_data_error", "error": event}, record)

    def _take_early(self, span_id: str) -> list[Record]:
        early = self._early.pop(span_id, [])
        self._early_count -= len(early)
        return early

    def _span_line(self, kind: str, record: Record) -> dict[str, Any]:
        line: dict[str, Any] = {
            "type": kind,
            "id": record["id"],
            "name": ONE_LOGGER_NAMES.get(record["name"], record["name"]),
        }
        attributes = self._plain(record)
        if kind != "start":
            attributes["duration_msec"] = int(record["duration"] * 1000)
        if attributes:
            line["attributes"] = attributes
        return line

    def _error_event(self, record: Record) -> dict[str, Any]:
        error = self._masker.mask(record["error"])
        kind, message = str(error.get("type") or ""), str(error.get("message") or "")
        attributes = {"error_message": message}
        if kind:
            # Our message begins with the type, which has its own field here.
            attributes |= {"exception_type": kind, "exception_message": message.removeprefix(f"{kind}: ")}
        return _event("error", _end_of(record), attributes)

    def _plain(self, record: Record) -> dict[str, Any]:
        return {**plain_attributes(self._masker.mask(record.get("attributes")))}

    def _put(self, line: dict[str, Any], record: Record) -> None:
        self._count += 1
        line |= {"count": self._count, "pid": os.getpid(), "run_id": self._run_id}
        for ours in ("session", "rank"):
            if record.get(ours) is not None:
                line[ours] = record[ours]
        if "id" in line and record.get("parent_id"):
            line["parent_id"] = record["parent_id"]
        self._unwritten.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def _append(self, lines: bytes) -> None:
        """Append all of `lines` or, if the disk fails, none of them."""
        make_folders(self._path.parent, 0o775)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        descriptor = open_to_write(self._path, flags, self._mode, known=self._identity)
        try:
            status = os.fstat(descriptor)
            self._identity, size = identity_of(status), status.st_size
            if size and _last_byte(descriptor, size) != b"\n":
                # A kill left an incomplete line.
                lines = b"\n" + lines
            try:
                write_all(descriptor, lines)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def _last_byte(descriptor: int, size: int) -> bytes:
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return os.read(descriptor, 1)


def _event(name: str, time: float, attributes: dict[str, Any]) -> dict[str, Any]:
    # A foreign record may have a time that JSON's integers do not hold.
    timestamp = int(max(-_LATEST_MSEC, min(time * 1000, _LATEST_MSEC)))
    return {"name": name, "attributes": {**attributes, "timestamp_msec": timestamp}}


def _start_event(record: Record) -> dict[str, Any]:
    return _event("span_start", record["start"], {})


def _end_of(record: Record) -> float:
    end: float = record["start"] + record["duration"]
    return end
