"""Runs that are files which grow: each is read from where the last batch ended."""

from __future__ import annotations

import copy
import os
import stat
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.source import (
    BATCH_BYTES,
    MAX_IMAGE_BYTES,
    MAX_RECORD_BYTES,
    NO_TIME,
    Batch,
    BlobRef,
    Builder,
    Growth,
    SourceInfo,
    Status,
    flattened,
)
from toolkit.telemetry.importers.yaml_text import load
from toolkit.telemetry.runfolder.portable import pread
from toolkit.telemetry.runfolder.safefile import open_regular

HEAD_BYTES: Final = 4096
_WINDOW: Final = 4 * 1024**2
_LARGEST_WINDOW: Final = 64 * 1024**2
_SHARED: Final = ""
"""In place of a path: what is remembered across files."""
STOP: Final = "stop"
"""In the state of a file: nothing after this can be read."""
_LFS: Final = b"version https://git-lfs"
_MOST_FILES: Final = 50_000
_SMALL_FILE: Final = 16 * 1024**2
_LARGEST_YAML: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Stream:
    """One file of a run."""

    path: str
    """Relative to the source's root."""
    piece: int = 0
    session: int = 0
    repeated: bool = False
    metric: str = ""
    """The metric, where a file has only one."""


@dataclass(slots=True)
class _Place:
    """How far a file was read."""

    offset: int = 0
    head: int = 0
    """Checksum of the first bytes that were read, which tells a rewritten file."""
    head_size: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    """What the parser has to remember."""


class Source(ABC):
    """A run whose blobs are files below its root, and whose end may be known."""

    def __init__(self, info: SourceInfo) -> None:
        self.info = info
        self._last_sign = NO_TIME
        self._growth = Growth()
        self._end: Status | None = None

    @abstractmethod
    def read(self, cursor: Any, *, max_bytes: int = BATCH_BYTES) -> Batch:
        """Return what is new since `cursor`."""

    def status(self, now: float) -> Status:
        """Return how the run ended, as far as its files say so."""
        if self._end is not None:
            return self._end
        return Status(self._growth.state(self._last_sign, now), last_sign=self._last_sign)

    def blob(self, ref: BlobRef, *, max_bytes: int = MAX_IMAGE_BYTES) -> bytes:
        """Return the bytes that an event refers to."""
        return read_blob(self.info.root, ref, max_bytes)


class WholeSource(Source):
    """A run whose files are written whole: a change is read from the start."""

    def __init__(self, info: SourceInfo, *paths: str) -> None:
        super().__init__(info)
        self.paths = paths

    def signature(self) -> Any:
        """Return what changes with the files: size and time of each that there is."""
        found = {}
        for path in self.paths:
            with suppress(OSError):
                status = os.lstat(self.info.root / path)
                found[path] = [status.st_size, status.st_mtime_ns]
                # In this order: at first it is NaN, which is never larger.
                self._last_sign = max(status.st_mtime, self._last_sign)
        return found

    @abstractmethod
    def read_whole(self, out: Builder) -> None:
        """Add everything."""

    def read(self, cursor: Any, *, max_bytes: int = BATCH_BYTES) -> Batch:  # noqa: ARG002
        """Return everything if a file changed since `cursor`, else nothing."""
        out = Builder()
        batch = out.batch
        signature = self.signature()
        if not signature:
            out.pass_over("files that cannot be opened")
            return batch
        batch.cursor = signature
        if cursor != batch.cursor:
            batch.replaced = cursor is not None
            self.read_whole(out)
        return batch


class FilesSource(Source):
    """A run whose files only grow. A format says which files there are and parses their bytes."""

    window = _WINDOW

    def __init__(self, info: SourceInfo, *, settings: Sequence[str] = ()) -> None:
        super().__init__(info)
        self._settings: dict[str, tuple[int, float]] = dict.fromkeys(settings, (0, NO_TIME))
        """YAML files next to the log with the run's settings, each with size and time of what was read."""
        self._cut: dict[str, str] = {}
        self.shared: dict[str, Any] = {}
        """What a parser has to remember across files."""

    # ------------------------------------------------------------ for each format

    @abstractmethod
    def streams(self) -> Sequence[Stream]:
        """Return the files of the run, in the order of reading."""

    @abstractmethod
    def parse(self, stream: Stream, data: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:
        """Add what `data`, which begins at `offset`, has; return how many bytes are done.

        More than there are means that bytes yet to be read are skipped.
        `state` is kept until the next call for this file.
        """

    def at_end(self, stream: Stream, rest: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:  # noqa: ARG002
        """Handle bytes at the end of a file that `parse` left; return how many are done."""
        return 0

    def cut_at(self, stream: Stream, offset: int | None) -> None:
        """Note that a file ends within a record, or that it no longer does."""
        before = self._cut.pop(stream.path, None)
        if before in self.info.notes:
            self.info.notes.remove(before)
        if offset is not None:
            self._cut[stream.path] = f"{stream.path} ends within a record, at byte {offset:,}"
            self.info.note(self._cut[stream.path])

    # ------------------------------------------------------------ RunSource

    def read(self, cursor: Any, *, max_bytes: int = BATCH_BYTES) -> Batch:
        """Return what is new since `cursor`."""
        # What an earlier batch gave stays as it is.
        places: dict[str, _Place] = copy.deepcopy(cursor or {})
        out = Builder()
        streams = self.streams()
        if len(streams) > _MOST_FILES:
            streams = streams[:_MOST_FILES]
            self.info.note(f"only the first {_MOST_FILES:,} of its files are read")
        batch = out.batch
        batch.replaced = self._was_replaced(streams, places)
        if batch.replaced:
            places = {}
        self.shared = places.setdefault(_SHARED, _Place()).state
        self._end = self.shared.get("end")
        self._read_settings()
        left = max_bytes
        for stream in streams:
            if left <= 0:
                batch.more = True
                break
            place = places.setdefault(stream.path, _Place())
            done, is_complete = self._read_file(stream, place, left, out)
            left -= done
            batch.bytes_read += done
            batch.more = batch.more or not is_complete
        self._growth.take(batch, cursor)
        self.shared["end"] = self._end
        batch.cursor = places
        return batch

    # ------------------------------------------------------------ reading

    def _read_settings(self) -> None:
        for path, seen in self._settings.items():
            try:
                with open_below(self.info.root, path) as file:
                    self._settings[path] = (file.size, file.modified)
                    if self._settings[path] == seen or file.size > _LARGEST_YAML:
                        continue
                    found = load(file.read(0, file.size))
            except OSError:
                continue
            self.info.keep(flattened(found))

    def _was_replaced(self, streams: Sequence[Stream], places: dict[str, _Place]) -> bool:
        present = {stream.path for stream in streams}
        for path, place in places.items():
            if not place.offset:
                continue
            if path not in present:
                return True
            try:
                with open_below(self.info.root, path) as file:
                    if file.size < place.offset or zlib.crc32(file.read(0, place.head_size)) != place.head:
                        return True
            except OSError:
                return True
        return False

    def _read_file(self, stream: Stream, place: _Place, limit: int, out: Builder) -> tuple[int, bool]:
        """Read at most about `limit` new bytes; return how many, and whether the file's end was reached."""
        try:
            file = open_below(self.info.root, stream.path)
        except OSError as error:
            out.pass_over(
                f"files that cannot be opened ({error.strerror or type(error).__name__})", piece=stream.piece
            )
            return 0, True
        with file:
            if not (self._last_sign >= file.modified):
                self._last_sign = file.modified
            if place.head_size < HEAD_BYTES and place.head_size < file.size:
                head = file.read(0, HEAD_BYTES)
                if place.offset == 0 and head.startswith(_LFS):
                    self.info.note(f"{stream.path} is a Git LFS pointer: its content was not downloaded")
                    out.pass_over("Git LFS pointers", piece=stream.piece)
                    return 0, True
                place.head, place.head_size = zlib.crc32(head), len(head)
            if place.state.get(STOP):
                return 0, True
            done = 0
            window = self.window
            while done < limit:
                data = file.read(place.offset, window)
                if not data:
                    return done, True
                is_last = place.offset + len(data) >= file.size
                used = self.parse(stream, data, place.offset, place.state, out)
                if used == 0 and is_last:
                    used = self.at_end(stream, data, place.offset, place.state, out)
                    place.offset += used
                    return done + used, True
                if used == 0:
                    if window < _LARGEST_WINDOW:
                        window *= 4
                        continue
                    place.state[STOP] = True
                    self.info.note(
                        f"{stream.path} has a record of more than 64 MB at byte {place.offset:,}; it ends there"
                    )
                    out.pass_over("files that cannot be read further", piece=stream.piece)
                    return done, True
                if place.offset + used > file.size:
                    return done, True
                place.offset += used
                done += used
                window = self.window
                if place.state.get(STOP):
                    return done, True
            return done, place.offset >= file.size


class OpenFile:
    """A regular file, open for reading."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        status = os.fstat(fd)
        self.size = status.st_size
        self.modified = status.st_mtime

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset`, fewer at the end that the file had when it was opened."""
        parts = []
        count = min(count, self.size - offset)
        while count > 0:
            part = pread(self._fd, count, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def open_below(root: Path, relative: str) -> OpenFile:
    """Open a regular file below `root`; no part of the path may be a link.

    Raises:
        OSError: it is not there, is no regular file, or would leave `root`.
    """
    parts = Path(relative).parts
    if not parts or Path(relative).is_absolute() or ".." in parts or "\0" in relative:
        raise OSError(f"{relative!r} is not below the folder")
    folder = root
    for part in parts[:-1]:
        folder /= part
        if stat.S_ISLNK(os.lstat(folder).st_mode):
            raise OSError(f"{part} is a symbolic link")
    return OpenFile(open_regular(folder / parts[-1]))


def read_small(root: Path, relative: str, *, limit: int = _SMALL_FILE) -> bytes:
    """Return the content of a small file below `root`.

    Raises:
        OSError: it cannot be read, or is larger than `limit`.
    """
    with open_below(root, relative) as file:
        if file.size > limit:
            raise OSError(f"{relative} has {file.size:,} bytes")
        return file.read(0, limit)


def read_blob(root: Path, ref: BlobRef, max_bytes: int) -> bytes:
    """Return the bytes that `ref` refers to.

    Raises:
        OSError: they cannot be read, or are more than `max_bytes`.
    """
    with open_below(root, ref.path) as file:
        length = file.size - ref.offset if ref.length < 0 else ref.length
        if not 0 <= length <= max_bytes:
            raise OSError(f"{ref.path} has {length:,} bytes there")
        return file.read(ref.offset, length)


class LinesSource(FilesSource):
    """A run whose files are lines of text."""

    window = 1024**2

    @abstractmethod
    def line(self, stream: Stream, line: bytes, state: dict[str, Any], out: Builder) -> None:
        """Add what one line has, which is not empty."""

    def parse(self, stream: Stream, data: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:  # noqa: ARG002
        """Parse complete lines."""
        # Of more than a window only the one long line that it was read for.
        end = data.rfind(b"\n", 0, self.window) + 1 or data.find(b"\n") + 1
        if end:
            line = self.line
            for content in data[: end - 1].split(b"\n"):
                if len(content) > MAX_RECORD_BYTES:
                    out.pass_over("lines that are too long", piece=stream.piece)
                elif content.strip():
                    line(stream, content, state, out)
        return end
