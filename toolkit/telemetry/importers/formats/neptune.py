"""Neptune: the queue of operations that an offline or async run leaves."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import LinesSource, Stream, read_small
from toolkit.telemetry.importers.folders import Folder, Found, names_in
from toolkit.telemetry.importers.json_text import parsed
from toolkit.telemetry.importers.source import (
    MAX_METRICS,
    MAX_NAME_CHARS,
    MAX_TEXT_CHARS,
    NO_STEP,
    Builder,
    Event,
    SourceInfo,
    Status,
    as_number,
    as_step,
    run_info,
)
from toolkit.telemetry.importers.times import from_any

FORMAT: Final = "neptune"
_DATA: Final = re.compile(r"data-(\d+)\.log$")


class NeptuneSource(LinesSource):
    """One queue: operations in files that are numbered by their first operation."""

    def __init__(self, info: SourceInfo, folder: str) -> None:
        super().__init__(info)
        self._folder = folder

    def streams(self) -> Sequence[Stream]:
        """Return the files in order."""
        found = filter(None, map(_DATA.match, names_in(self.info.root / self._folder)))
        names = [match[0] for match in sorted(found, key=lambda match: int(match[1][:18]))]
        return [Stream(f"{self._folder}/{name}" if self._folder != "." else name) for name in names]

    def line(self, stream: Stream, line: bytes, state: dict[str, Any], out: Builder) -> None:  # noqa: ARG002
        """Take one operation."""
        row = parsed(line)
        operation = row.get("obj") if row is not None else None
        if type(operation) is not dict or type(operation.get("path")) is not list:
            out.pass_over("lines that are no operation")
            return
        kind = str(operation.get("type"))
        name = "/".join(str(part) for part in operation["path"][:50])[:MAX_NAME_CHARS]
        if kind in ("LogFloats", "LogStrings"):
            values = operation.get("values")
            for point in values if type(values) is list else ():
                if type(point) is dict:
                    self._add_logged(kind, name, point, out)
        elif kind == "ConfigFloatSeries":
            pass
        elif kind.startswith("Assign"):
            self.info.keep([(name, operation.get("value"))])
            if name == "sys/failed" and operation.get("value") is True:
                self._end = Status("failed", last_sign=self._last_sign)
            elif name == "sys/name" and type(operation.get("value")) is str:
                self.info.name = operation["value"][:1000] or self.info.name
        else:
            out.not_number(f"{kind} (of the tool)")

    def _add_logged(self, kind: str, name: str, point: dict[str, Any], out: Builder) -> None:
        timestamp = from_any(point.get("ts"))
        step = as_step(point.get("step"))
        if step == NO_STEP:
            counts = self.shared.setdefault("counts", {})
            if len(counts) < MAX_METRICS or name in counts:
                step = counts[name] = counts.get(name, -1) + 1
        if kind == "LogFloats":
            value = as_number(point.get("value"))
            if value is not None:
                out.add(name, step, timestamp, value)
                return
        out.not_number(name)
        words = str(point.get("value"))[:MAX_TEXT_CHARS]
        out.event(Event(kind="text", name=name, step=step, time=timestamp, payload=words))


def sources_in(folder: Folder) -> Found:
    """Return the run of a folder with a queue."""
    names = [name for name in folder.files if _DATA.match(name)]
    if not names or not any(folder.head(name, 200).lstrip().startswith(b'{"obj"') for name in names[:20]):
        return Found()
    try:
        about = parsed(read_small(folder.root, folder.below("metadata.json"), limit=256 * 1024)) or {}
    except OSError:
        about = {}
    run_id = about.get("containerId")
    own = run_id if type(run_id) is str else os.path.realpath(folder.path)
    info = run_info(FORMAT, own, folder.path.name, folder.root, [folder.relative])
    info.run_id = own if type(run_id) is str else ""
    info.writer = str(about.get("neptuneClientVersion", ""))[:100]
    return Found([NeptuneSource(info, folder.relative)], frozenset(names))


def source_of_file(path: Path, head: bytes) -> NeptuneSource | None:
    """Return the run of the queue that a named file belongs to."""
    if not _DATA.match(path.name) or not head.lstrip().startswith(b'{"obj"'):
        return None
    names = {path.name: 1}
    found = sources_in(Folder(path.parent, ".", names)).sources
    return found[0] if found and isinstance(found[0], NeptuneSource) else None
