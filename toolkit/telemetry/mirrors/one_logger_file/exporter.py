"""Writes spans and events to a file in the format of OneLogger's own file exporter."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.telemetry.mirrors.shared.scalars import plain_attributes
from toolkit.telemetry.mirrors.shared.span_filter import SpanFilter, SpanSelection
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.layout import make_folders
from toolkit.telemetry.runfolder.records import ERROR, LOST, SPAN, SPAN_EVENT, SPAN_START, Record
from toolkit.telemetry.runfolder.safefile import NO_FILE, append_all
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
        self._lines: list[dict[str, Any]] = []
        """Not written yet."""
        self._announced: set[str] = set()
        """Spans whose start has a line."""
        self._early: list[Record] = []
        """Events of other spans: those of a short span come before its record."""

    def write(self, batch: Sequence[Record]) -> None:
        """Append the spans of `batch`. Raises OSError if the file system did not take it."""
        self._masker = Masker()
        self._put_all(self._spans.take(batch))

    def close(self) -> None:
        """Append the events that were still held back. Raises OSError if the file system did not take it."""
        # Their spans have no record.
        self._announced.update(record["span_id"] for record in self._early)
        self._put_all(self._early)

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
        if self._lines:
            for count, line in enumerate(self._lines, self._count + 1):
                line["count"] = count
            self._append(
                b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in self._lines)
            )
            self._count += len(self._lines)
            self._lines.clear()

    def _put_start(self, record: Record) -> None:
        self._put(record, "start", start_event=_event("span_start", record["start"]))
        self._announced.add(record["id"])
        for early in self._early:
            if early["span_id"] == record["id"]:
                self._put_event(early)
        self._early = [early for early in self._early if early["span_id"] != record["id"]]

    def _put_end(self, record: Record) -> None:
        span_id, end = record["id"], record["start"] + record["duration"]
        has_error = isinstance(record.get("error"), dict)
        is_expected = has_error or any(early["span_id"] == span_id for early in self._early)
        if span_id not in self._announced and is_expected:
            # OneLogger writes a span before the events inside it.
            self._put_start(record)
        if has_error:
            error = _event("error", end, self._error_attributes(record))
            self._put(record, "application_error", event=error)
        last = self._lines[-1] if self._lines else {}
        if last.get("type") == "start" and last["id"] == span_id:
            # Nothing came between its start and its end: one line for both.
            self._lines.pop()
            self._announced.discard(span_id)
        stop = _event("span_stop", end)
        if span_id in self._announced:
            self._announced.discard(span_id)
            self._put(record, "stop", stop_event=stop)
        else:
            self._put(record, "complete", start_event=_event("span_start", record["start"]), stop_event=stop)

    def _put_event(self, record: Record) -> None:
        if record["span_id"] not in self._announced and len(self._early) < _EARLY_EVENTS_KEPT:
            self._early.append(record)
        else:
            self._put(record, "event", event=_event(record["name"], record["time"], self._plain(record)))

    def _put_failure(self, record: Record) -> None:
        if record["event"] == LOST:
            message = f"{record.get('records')} records were lost: {record.get('reason')}"
        else:
            message = f"{record.get('doing')}: {record.get('message')}"
        attributes = {
            "error_message": self._masker.mask(message),
            "telemetry_data_error_type": "incomplete_telemetry_data",
        }
        error = _event("telemetry_data_error", record["time"], attributes)
        self._put(record, "telemetry_data_error", error=error)
        if len(self._lines) > 1 and self._lines[-2]["type"] == "start":
            # As in OneLogger, this does not part a start from its stop.
            self._lines[-2:] = reversed(self._lines[-2:])

    def _error_attributes(self, record: Record) -> dict[str, Any]:
        error = self._masker.mask(record["error"])
        kind, message = str(error.get("type") or ""), str(error.get("message") or "")
        attributes = {"error_message": message}
        if kind:
            # Our message begins with the type, which has its own field here.
            attributes |= {"exception_type": kind, "exception_message": message.removeprefix(f"{kind}: ")}
        return attributes

    def _plain(self, record: Record) -> dict[str, Any]:
        return {**plain_attributes(self._masker.mask(record.get("attributes")))}

    def _put(self, record: Record, kind: str, **parts: Any) -> None:
        """Put a line about `record`: OneLogger's fields in its order, then ours."""
        line: dict[str, Any] = {"type": kind}
        ours = ["session", "rank"]
        if kind in ("start", "stop", "complete"):
            line |= {"id": record["id"], "name": ONE_LOGGER_NAMES.get(record["name"], record["name"])}
            attributes = self._plain(record)
            if kind != "start":
                attributes["duration_msec"] = int(record["duration"] * 1000)
            if attributes:
                line["attributes"] = attributes
            ours.append("parent_id")
        elif kind != "telemetry_data_error":
            line["span_id"] = record.get("span_id", record.get("id"))
        line |= {**parts, "count": 0, "pid": os.getpid(), "run_id": self._run_id}
        self._lines.append(line | {name: record[name] for name in ours if record.get(name) is not None})

    def _append(self, lines: bytes) -> None:
        """Append all of `lines` or, if the disk fails, none of them."""
        make_folders(self._path.parent, 0o775)
        self._identity, _ = append_all(self._path, lines, mode=self._mode, known=self._identity)


def _event(name: str, time: float, attributes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    # A foreign record may have a time that JSON's integers do not hold.
    timestamp = int(max(-_LATEST_MSEC, min(time * 1000, _LATEST_MSEC)))
    return {"name": name, "attributes": {**(attributes or {}), "timestamp_msec": timestamp}}
