"""A run folder that an import writes: every batch is written once, whenever the import is killed.

A batch goes into a file of its own first, with the state that it leads to. Then its lines are appended to the records,
and the state is replaced. An import that finds such a file continues with the lines that are missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import orjson

from toolkit.mirrors.csv_mirror import CsvMirror
from toolkit.runfolder.codec import encode
from toolkit.runfolder.layout import METRICS_JSONL, PRIVATE, candidate_names, make_folders
from toolkit.runfolder.portable import SAFELY, pread, try_lock
from toolkit.runfolder.reader import Cursor, last_record, read_from
from toolkit.runfolder.records import Record
from toolkit.runfolder.safefile import open_regular, replace_file, why_not_ours, write_all
from toolkit.runfolder.table.csv_table import SHORT
from toolkit.runfolder.untrusted import read_object

STATE: Final = "import.json"
PENDING: Final = "import.pending"
HALF: Final = ".importing-"
"""Before the name of the folder around one whose source was not read to its end yet."""

_MAX_STATE_BYTES: Final = 64 * 1024**2
_MAX_PENDING_BYTES: Final = 1024**3
_APPEND: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | SAFELY


class FolderError(OSError):
    """A run folder cannot be continued; the message says why."""


@dataclass(slots=True, kw_only=True)
class State:
    """What an import knows about what it has written."""

    cursor: str | None = None
    """Where to continue in the source; None: compare it with the records first."""
    seq: int = 0
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Number of each session, with when it `started`, its `last` time and step, and how it `ended`."""
    known: dict[str, str] = field(default_factory=dict)
    """Checksums of the configuration that was written, and of events that are at no step and no time."""
    not_imported: dict[str, int] = field(default_factory=dict)

    def as_object(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


class ImportedFolder:
    """A run folder, locked while it is open."""

    def __init__(self, folder: Path) -> None:
        """Open or begin the records of `folder`, and complete a batch that was cut off.

        Raises:
            FolderError: another process writes it, or its records are not those of the import.
            OSError: it cannot be read or written.
        """
        self.folder = folder
        self._file = os.open(folder / METRICS_JSONL, _APPEND, PRIVATE.file)
        try:
            if try_lock(self._file) is False:
                raise FolderError(f"another process writes into {folder}")
            self._complete()
            self.state = read_state(folder)
            last = last_record(folder / METRICS_JSONL)
            seq = last.get("seq") if last is not None else None
            if isinstance(seq, int):
                self.state.seq = max(self.state.seq, seq + 1)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> ImportedFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def commit(self, records: Iterable[Record], state: State) -> int:
        """Append records, numbered, together with the state after them; return how many."""
        lines = []
        seq = state.seq
        for record in records:
            # `event`, `time`, `seq`, `session` come first, as in the records of the logger.
            numbered = {"event": record["event"]}
            if "time" in record:
                numbered["time"] = record["time"]
            lines.append(encode({**numbered, "seq": seq, **record}))
            seq += 1
        state.seq = seq
        self.state = state
        if not lines:
            self._write_state(orjson.dumps(state.as_object()))
            return 0
        data = b"".join(lines)
        head = {"base": os.fstat(self._file).st_size, "size": len(data), "state": state.as_object()}
        pending = orjson.dumps(head) + b"\n" + data
        replace_file(self.folder / PENDING, pending, mode=PRIVATE.file, durable=True)
        self._complete(pending)
        return len(lines)

    def update_table(self) -> None:
        """Add the rows that metrics.csv lacks."""
        mirror = CsvMirror(self.folder, mode=PRIVATE.file, form=SHORT)
        records = self.folder / METRICS_JSONL
        cursor: Cursor | int = mirror.start_at()
        while True:
            chunk = read_from(records, cursor)
            if not chunk.records and not chunk.bad_count:
                break
            if chunk.records:
                mirror.write(chunk.records)
            cursor = chunk.cursor
        mirror.close()

    def _complete(self, pending: bytes | None = None) -> None:
        """Append what is missing of the pending batch, and make its state the one of the folder."""
        if pending is None:
            pending = _read_pending(self.folder)
            if pending is None:
                return
        head_line, _, data = pending.partition(b"\n")
        head = orjson.loads(head_line)
        base, size = head["base"], os.fstat(self._file).st_size
        written = size - base
        if written < 0 or len(data) != head["size"]:
            raise FolderError(f"{METRICS_JSONL} in {self.folder} was shortened; import into another folder")
        part = min(written, len(data))
        if pread(self._file, part, base) != data[:part]:
            raise FolderError(f"something else wrote into {METRICS_JSONL} in {self.folder}")
        write_all(self._file, data[part:])
        os.fsync(self._file)
        self._write_state(orjson.dumps(head["state"]))
        os.unlink(self.folder / PENDING)

    def _write_state(self, data: bytes) -> None:
        replace_file(self.folder / STATE, data, mode=PRIVATE.file, durable=True)


def read_state(folder: Path) -> State:
    """Return the state in `folder`; an empty one if it is missing or damaged."""
    try:
        found = read_object(folder / STATE, _MAX_STATE_BYTES, ValueError)
        kept = {name: found[name] for name in State.__slots__ if name in found}
        state = State(**kept)
        is_right = (
            isinstance(state.seq, int)
            and (state.cursor is None or isinstance(state.cursor, str))
            and all(isinstance(value, dict) for value in (state.sessions, state.known, state.not_imported))
            and all(key.isdecimal() and isinstance(about, dict) for key, about in state.sessions.items())
        )
    except (OSError, ValueError):
        return State()
    return state if is_right else State()


def all_records(folder: Path) -> Iterable[Record]:
    """Yield the records of a run folder."""
    cursor: Cursor | int = 0
    path = folder / METRICS_JSONL
    while os.path.lexists(path):
        chunk = read_from(path, cursor)
        if not chunk.records and not chunk.bad_count:
            return
        yield from chunk.records
        cursor = chunk.cursor


def make_half(log_dir: Path, run_id: str) -> Path:
    """Return the folder in which a new import is made; it may be there already, after a kill.

    Raises:
        FolderError: another user made it.
    """
    make_folders(log_dir, 0o775)
    # One level down: what looks for runs in the log directory does not see it.
    folder = log_dir / f"{HALF}{run_id}" / "run"
    make_folders(folder, PRIVATE.folder)
    why = why_not_ours(log_dir, folder.parent) or why_not_ours(log_dir, folder)
    if why is not None:
        raise FolderError(
            f"{why}, and is where the import would be made; remove it, or import into another folder"
        )
    os.utime(folder.parent)
    return folder


def free_name(log_dir: Path, name: str) -> str:
    """Return the first free folder name for a run called `name`."""
    return next(found for found in candidate_names(log_dir, name) if not os.path.lexists(log_dir / found))


def put_in_place(half: Path, folder: Path) -> None:
    """Rename a complete import to its own folder."""
    os.rename(half, folder)
    with suppress(OSError):
        os.rmdir(half.parent)


def discard_empty(half: Path) -> None:
    """Remove a half-made import that has no record."""
    with suppress(OSError):
        if os.path.getsize(half / METRICS_JSONL) == 0:
            os.unlink(half / METRICS_JSONL)
            os.rmdir(half)
            os.rmdir(half.parent)


def _read_pending(folder: Path) -> bytes | None:
    try:
        descriptor = open_regular(folder / PENDING)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MAX_PENDING_BYTES)
