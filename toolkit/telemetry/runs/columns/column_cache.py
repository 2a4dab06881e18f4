"""Caches the columns and findings of large logs in the user's cache folder, so that opening a log again is fast."""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import orjson
import pyarrow as pa

from toolkit.telemetry.diagnostics.finding import Finding, finding_from
from toolkit.telemetry.runfolder.layout import make_folders
from toolkit.telemetry.runfolder.metrics import KINDS
from toolkit.telemetry.runfolder.portable import pread
from toolkit.telemetry.runfolder.reader import BadLine, Cursor, Identity
from toolkit.telemetry.runfolder.safefile import open_regular, why_not_ours_alone
from toolkit.telemetry.runs.columns.run_columns import MetricColumn, RunColumns, Segment
from toolkit.telemetry.runs.growable_array import GrowableArray

_VERSION: Final = 2
"""Raised when the format of the columns changes; files of another version are ignored."""

_TAIL_BYTES: Final = 4096
_STALE_TEMPORARY_S: Final = 3600.0
"""Saving never takes that long."""
_COLUMNS: Final = ".arrow"
_FINDINGS: Final = ".findings"
_SAVES_AT_ONCE: Final = 64
"""Between two looks at how large the folder is, which takes longer than saving a small log."""
_MAX_FINDINGS_BYTES: Final = 16 * 1024 * 1024
_ROWS: Final = ("time", "elapsed", "step", "epoch", "kind", "at")
_EVENTS: Final = ("event_kind", "event_start", "event_length")


class ColumnCache:
    """A folder of files that may be deleted at any time; a file that does not match its log is ignored.

    Not every number can be checked against the log, so folder and files must belong to this user and not be writable
    by others; otherwise the cache is not used. The parent may be writable by everyone, such as /tmp.
    """

    def __init__(self, folder: Path, *, max_bytes: int = 4_000_000_000) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._saves = itertools.count()

    def load(self, log: Path) -> tuple[RunColumns, Cursor] | None:
        """Return what was saved for `log` and how far that had been read, if the file still starts with it."""
        try:
            batch = pa.ipc.open_file(self._mapped(self._path(log))).get_batch(0)
            # A corrupt length would be read beyond the end of the file, which kills the process.
            batch.validate(full=True)
            about = orjson.loads(batch.schema.metadata[b"about"])
            return _columns(batch, about), _valid_cursor(about, log, _VERSION)
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, IndexError, MemoryError):
            # Missing, of another version, or corrupt: the log is read instead.
            return None

    def _mapped(self, path: Path) -> pa.BufferReader:
        with self._open(path) as descriptor:
            return pa.BufferReader(pa.py_buffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)))

    def prepare(self, log: Path, columns: RunColumns, cursor: Cursor) -> Callable[[], None]:
        """Return a function that saves `columns` as they are now; they may grow meanwhile.

        A failure is ignored, because the log is still there.
        """
        try:
            batch = _batch(log, columns, cursor)
        except (OSError, pa.ArrowException, orjson.JSONEncodeError):
            return lambda: None
        return lambda: self._write(self._path(log), batch)

    def _write(self, target: Path, batch: pa.RecordBatch) -> None:
        def write(file: BinaryIO) -> None:
            with pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)

        self._replace(target, write)

    def load_findings(self, log: Path, version: str) -> tuple[list[Finding], Cursor] | None:
        """Return what this `version` of the detectors found in `log` up to the cursor; None if that is not known."""
        try:
            with self._open(self._path(log, _FINDINGS)) as descriptor:
                about = orjson.loads(pread(descriptor, _MAX_FINDINGS_BYTES, 0))
            cursor = _valid_cursor(about, log, version)
            return [_finding(fields) for fields in about["findings"]], cursor
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError):
            # Missing, of another version, or corrupt: the log is examined instead.
            return None

    def save_findings(self, log: Path, version: str, findings: Sequence[Finding], cursor: Cursor) -> None:
        """Save what the detectors found in `log` up to `cursor`; a failure is ignored."""
        try:
            fields = [finding.to_fields() for finding in findings]
            about = orjson.dumps({**_about(log, version, cursor), "findings": fields})
        except (OSError, orjson.JSONEncodeError):
            return
        self._replace(self._path(log, _FINDINGS), lambda file: file.write(about))

    @contextmanager
    def _open(self, path: Path) -> Iterator[int]:
        """Open a file of the cache; one that others could change or truncate is refused."""
        problem = self.distrusted()
        descriptor = open_regular(path)
        try:
            # Check the open file, not the path: that may point elsewhere shortly after.
            problem = problem or why_not_ours_alone(os.fstat(descriptor))
            if problem is not None:
                raise PermissionError(f"{path.name} {problem}")
            yield descriptor
        finally:
            os.close(descriptor)

    def _replace(self, target: Path, write: Callable[[BinaryIO], Any]) -> None:
        temporary = target.with_name(f".{target.name}.{os.urandom(6).hex()}.tmp")
        try:
            make_folders(self._folder, 0o700)
            if self.distrusted() is not None:
                return
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                write(file)
            _sync(temporary)
            os.replace(temporary, target)
            if next(self._saves) % _SAVES_AT_ONCE == 0:
                self._make_room(target)
        except (OSError, pa.ArrowException, orjson.JSONEncodeError):
            with suppress(OSError):
                temporary.unlink()

    def clear(self) -> int:
        """Delete everything and return the number of bytes freed."""
        freed = 0
        for path, status in self._files():
            with suppress(OSError):
                path.unlink()
                freed += status.st_size
        return freed

    def size(self) -> int:
        """Return the size of the cache in bytes."""
        return sum(status.st_size for _, status in self._files())

    @property
    def folder(self) -> Path:
        """The cache folder."""
        return self._folder

    def distrusted(self) -> str | None:
        """Return why the folder is not used, as the end of a sentence about it; None if it is used."""
        try:
            link, folder = os.lstat(self._folder), os.stat(self._folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"cannot be used: {error.strerror}"
        if not stat.S_ISDIR(folder.st_mode):
            return "is not a folder"
        return why_not_ours_alone(link) or why_not_ours_alone(folder)

    def _path(self, log: Path, ending: str = _COLUMNS) -> Path:
        return self._folder / f"{hashlib.sha256(os.fsencode(log)).hexdigest()[:32]}{ending}"

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found: list[tuple[Path, os.stat_result]] = []
        if self.distrusted() is not None:
            return found
        with suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name.endswith((_COLUMNS, _FINDINGS)) and entry.is_file(follow_symlinks=False):
                    with suppress(OSError):
                        found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
        return found

    def _make_room(self, newest: Path) -> None:
        self._remove_stale_temporaries()
        files = sorted(self._files(), key=lambda item: item[1].st_mtime)
        held = sum(status.st_size for _, status in files)
        for path, status in files:
            if held <= self._max_bytes:
                return
            if path != newest:
                with suppress(OSError):
                    path.unlink()
                    held -= status.st_size

    def _remove_stale_temporaries(self) -> None:
        """Remove temporary files of processes that ended while saving."""
        with suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name.endswith(".tmp") and entry.is_file(follow_symlinks=False):
                    with suppress(OSError):
                        if time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE_TEMPORARY_S:
                            os.unlink(entry.path)


def _finding(fields: dict[str, Any]) -> Finding:
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    found = Finding(**fields)
    # What was read back is what was written, down to the types.
    if finding_from(found.to_fields()) != found:
        raise ValueError("not a finding")
    return found


def _batch(log: Path, columns: RunColumns, cursor: Cursor) -> pa.RecordBatch:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        name: getattr(columns, name).values for name in (*_ROWS, *_EVENTS)
    }
    for number, metric in enumerate(columns.metrics.values()):
        arrays[f"rows{number}"] = metric.rows.values
        arrays[f"values{number}"] = metric.values.values
    about = {
        **_about(log, _VERSION, cursor),
        "metrics": [
            [name, metric.event, _json_float(metric.low), _json_float(metric.high), metric.non_finite]
            for name, metric in columns.metrics.items()
        ],
        "segments": [asdict(segment) for segment in columns.segments],
        "event_names": columns.event_names,
        "counts": dict(columns.counts),
        "records": columns.records,
        "bad_count": columns.bad_count,
        "bad_lines": [line._asdict() for line in columns.bad_lines],
        "lost_records": columns.lost_records,
        "lost_reasons": columns.lost_reasons,
        "metrics_left_out": sorted(columns.metrics_left_out),
    }
    # Columns differ in length, so each is one list in a table with one row.
    lists = [
        pa.LargeListArray.from_arrays(pa.array([0, len(array)], type=pa.int64()), pa.array(array))
        for array in arrays.values()
    ]
    return pa.RecordBatch.from_arrays(lists, names=list(arrays)).replace_schema_metadata(
        {"about": orjson.dumps(about)}
    )


def _columns(batch: pa.RecordBatch, about: dict[str, Any]) -> RunColumns:
    def array(name: str) -> np.ndarray[Any, Any]:
        # Not to_numpy, which imports pandas.
        values = batch.column(name).values
        found: np.ndarray[Any, Any] = np.frombuffer(
            values.buffers()[1] or b"", values.type.to_pandas_dtype(), len(values)
        )
        return found

    columns = RunColumns()
    for name in (*_ROWS, *_EVENTS):
        setattr(columns, name, GrowableArray(array(name)))
    rows = columns.rows
    _require_lengths(columns, about)
    every = [array(f"rows{number}") for number in range(len(about["metrics"]))]
    at_all = np.concatenate(every) if every else np.zeros(0, dtype=np.int32)
    if len(at_all) and not 0 <= int(at_all.min()) <= int(at_all.max()) < rows:
        raise ValueError("a column does not fit its rows")
    for number, (at, (name, event, low, high, non_finite)) in enumerate(
        zip(every, about["metrics"], strict=True)
    ):
        values = array(f"values{number}")
        if len(at) != len(values):
            raise ValueError(f"the column {name!r} does not fit its rows")
        # Not by __init__, which counts what is known.
        metric = MetricColumn.__new__(MetricColumn)
        metric.event = event
        metric.rows, metric.values = GrowableArray(at), GrowableArray(values)
        metric.low = np.inf if low is None else low
        metric.high = -np.inf if high is None else high
        metric.non_finite = non_finite
        columns.metrics[name] = metric
    columns.segments = [Segment(**segment) for segment in about["segments"]]
    columns.event_names = list(about["event_names"])
    columns.counts.update(about["counts"])
    columns.records = about["records"]
    columns.bad_count = about["bad_count"]
    columns.bad_lines = [BadLine(**line) for line in about["bad_lines"]]
    columns.lost_records = about["lost_records"]
    columns.lost_reasons = list(about["lost_reasons"])
    columns.metrics_left_out = set(about["metrics_left_out"])
    return columns


def _require_lengths(columns: RunColumns, about: dict[str, Any]) -> None:
    for names in (_ROWS, _EVENTS):
        if len({len(getattr(columns, name)) for name in names}) > 1:
            raise ValueError(f"the columns {', '.join(names)} are of different lengths")
    if len(columns.kind) and not 0 <= int(columns.kind.values.min()) <= int(columns.kind.values.max()) < len(
        KINDS
    ):
        raise ValueError("a record is of a kind that has no name")
    kinds = columns.event_kind.values
    if len(kinds) and not 0 <= int(kinds.min()) <= int(kinds.max()) < len(about["event_names"]):
        raise ValueError("an event is of a kind that has no name")
    for segment in about["segments"]:
        if not 0 <= segment["start"] < segment["end"] <= columns.rows:
            raise ValueError("a session does not fit the rows")


def _about(log: Path, version: int | str, cursor: Cursor) -> dict[str, Any]:
    """Return what identifies a log, and the part of it that was read."""
    return {
        "version": version,
        # A path may contain bytes that JSON cannot represent.
        "log": os.fsencode(log).hex(),
        "cursor": {**cursor._asdict(), "identity": cursor.identity and cursor.identity._asdict()},
        "tail_crc": _tail_crc(log, cursor.offset),
    }


def _valid_cursor(about: dict[str, Any], log: Path, version: int | str) -> Cursor:
    """Return how far `log` had been read; raise ValueError if this is not about it, or it has changed since."""
    saved = about["cursor"]
    identity = Identity(**saved["identity"])
    cursor = Cursor(saved["offset"], identity, saved["long_line_at"])
    descriptor = open_regular(log)
    try:
        status = os.fstat(descriptor)
        head = pread(descriptor, identity.head_length, 0)
        tail_crc = _crc_before(descriptor, cursor.offset)
    finally:
        os.close(descriptor)
    is_same_file = (status.st_dev, status.st_ino) == (identity.device, identity.inode)
    if (
        (about["version"], about["log"]) != (version, os.fsencode(log).hex())
        or not is_same_file
        or status.st_size < cursor.offset
        or zlib.crc32(head) != identity.head_crc
        or tail_crc != about["tail_crc"]
    ):
        raise ValueError("the log is another one, or was rewritten")
    return cursor


def _tail_crc(log: Path, offset: int) -> int:
    descriptor = open_regular(log)
    try:
        return _crc_before(descriptor, offset)
    finally:
        os.close(descriptor)


def _crc_before(descriptor: int, offset: int) -> int:
    """Return a checksum of the last bytes before `offset`, which changes if the file was rewritten."""
    start = max(0, offset - _TAIL_BYTES)
    return zlib.crc32(pread(descriptor, offset - start, start))


def _sync(path: Path) -> None:
    """Flush to disk: after a power cut a file may consist of zeros, which are valid columns."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _json_float(value: float) -> float | None:
    return value if np.isfinite(value) else None
