"""Comet: the zip of an offline experiment."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import WholeSource
from toolkit.telemetry.importers.folders import Folder, Found
from toolkit.telemetry.importers.json_text import parsed
from toolkit.telemetry.importers.source import MAX_RECORD_BYTES, Builder, RunSource, Status, run_info
from toolkit.telemetry.importers.times import from_ms
from toolkit.telemetry.runfolder.safefile import open_regular

FORMAT: Final = "comet"
_ABOUT, _MESSAGES = "experiment.json", "messages.json"
_LARGEST: Final = 64 * 1024**2
_LARGEST_LIST: Final = 4 * 1024**2
"""Of the list of files at the end of a zip; each entry takes some hundred bytes of memory."""
_END: Final = 22 + 65535
_RATIO: Final = 200
_MOST_LINES: Final = 1_000_000
_DAMAGE: Final = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


class CometSource(WholeSource):
    """One zip; it is written once, when the experiment ends."""

    def read_whole(self, out: Builder) -> None:
        """Add every message."""
        path = self.info.root / self.paths[0]
        out.batch.bytes_read = os.lstat(path).st_size
        about = parsed(_member(path, _ABOUT, out)) or {}
        self.info.group = str(about.get("project_name") or "")[:1000]
        tags = about.get("tags")
        self.info.tags = [str(tag)[:200] for tag in tags[:200]] if type(tags) is list else []
        if about.get("stop_time"):
            self._end = Status("finished", last_sign=self._last_sign, ended=from_ms(about["stop_time"]))
        messages = io.BytesIO(_member(path, _MESSAGES, out))
        for line in islice(messages, _MOST_LINES):
            if line.strip():
                self._add_payload(parsed(line) if len(line) <= MAX_RECORD_BYTES else None, out)
        if messages.read(1):
            out.pass_over("messages beyond the first million")

    def _add_payload(self, message: dict[str, Any] | None, out: Builder) -> None:
        payload = message.get("payload") if message is not None else None
        if message is None or type(payload) is not dict:
            out.pass_over("lines that are no message")
            return
        kind = message.get("type")
        metric, param = payload.get("metric"), payload.get("param")
        if kind == "metric_msg" and type(metric) is dict:
            timestamp = from_ms(payload.get("local_timestamp"))
            out.value(str(metric.get("metricName")), metric.get("step"), timestamp, metric.get("metricValue"))
        elif kind == "parameter_msg" and type(param) is dict:
            self.info.keep([(param.get("paramName"), param.get("paramValue"))])
        else:
            out.not_number(f"{kind} (of the tool)")


def _member(path: Path, name: str, out: Builder | None) -> bytes:
    """Return one file of the zip, at most 64 MB and 200 times its packed size."""
    try:
        with _opened(path) as archive:
            entry = archive.getinfo(name)
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # Others may ask for gigabytes to unpack anything.
                raise NotImplementedError
            limit = min(_LARGEST, max(entry.compress_size, 1024) * _RATIO)
            with archive.open(entry) as content:
                data = content.read(limit)
                if content.read(1) and out is not None:
                    out.pass_over(f"what {name} has beyond its limit of size")
            return data
    except _DAMAGE as error:
        if out is not None:
            out.pass_over(f"{name}, which cannot be read ({type(error).__name__})")
        return b""


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip, unless its list of files is too long to be read.

    Raises:
        OSError: it cannot be opened, or is too long.
        zipfile.BadZipFile: it is no zip.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _END))
        tail = file.read()
        at = tail.rfind(b"PK\x05\x06")
        # A zip of more than 4 GB has another end before this one.
        if at < 0 or len(tail) < at + 22 or tail[max(0, at - 20) :].startswith(b"PK\x06\x07"):
            raise zipfile.BadZipFile
        if int.from_bytes(tail[at + 12 : at + 16], "little") > _LARGEST_LIST:
            raise OSError("the list of its files is too long")
        file.seek(0)
        with zipfile.ZipFile(file) as archive:
            yield archive


def sources_in(folder: Folder) -> Found:
    """Return the run of each of Comet's zips in a folder."""
    found: list[RunSource] = []
    taken = set()
    for name in sorted(folder.files):
        if name.endswith(".zip") and folder.head(name, 4) == b"PK\x03\x04":
            source = _source(folder.root, folder.below(name))
            if source is not None:
                found.append(source)
                taken.add(name)
    return Found(found, frozenset(taken))


def source_of_file(path: Path, head: bytes) -> CometSource | None:
    """Return the run of one zip that was named."""
    return _source(path.parent, path.name) if head.startswith(b"PK\x03\x04") else None


def _source(root: Path, relative: str) -> CometSource | None:
    path = root / relative
    try:
        with _opened(path) as archive:
            if not {_ABOUT, _MESSAGES} <= set(archive.namelist()[:1000]):
                return None
    except _DAMAGE:
        return None
    about = parsed(_member(path, _ABOUT, None)) or {}
    own = about.get("offline_id")
    run_id = own if type(own) is str else ""
    info = run_info(FORMAT, run_id or os.path.realpath(path), str(own or path.stem), root, [relative])
    info.run_id, info.group = run_id[:100], str(about.get("project_name") or "")[:1000]
    return CometSource(info, relative)
