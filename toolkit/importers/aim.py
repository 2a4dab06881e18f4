"""Aim: its repository is in a private encoding, so the installed `aim` reads a copy of it in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from toolkit.importers.files import read_blob
from toolkit.importers.folders import Folder, Found
from toolkit.importers.json_text import parsed
from toolkit.importers.source import (
    BATCH_BYTES,
    MAX_IMAGE_BYTES,
    NO_TIME,
    Batch,
    BlobRef,
    Builder,
    Piece,
    SourceInfo,
    Status,
    as_number,
    decode_cursor,
    encode_cursor,
    source_id,
)

FORMAT: Final = "aim"
_NEEDED: Final = "Aim repositories need Aim itself: pip install aim"
_LARGEST: Final = 1024**3
_LIMIT_S: Final = 120
_MEMORY: Final = 4 * 1024**3
_MOST_OUTPUT: Final = 512 * 1024**2

_PROGRAM: Final = """
import json, os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
os.environ["AIM_UI_TELEMETRY_ENABLED"] = "0"
from aim import Repo
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for run in Repo(sys.argv[1]).iter_runs():
    about = {"run": run.hash, "name": run.name, "experiment": run.experiment, "end": run.end_time}
    about["params"] = json.loads(json.dumps(run.collect(), default=str)) if hasattr(run, "collect") else {}
    print(json.dumps(about, default=str), file=out)
    for metric in run.metrics():
        context = metric.context.to_dict()
        name = metric.name + (" " + json.dumps(context, sort_keys=True) if context else "")
        steps, columns = metric.data.items_list()
        values, epochs, times = (list(columns) + [[], [], []])[:3]
        row = {"metric": name, "steps": list(map(int, steps)), "values": list(map(float, values)), "times": list(times)}
        print(json.dumps(row), file=out)
"""


class AimSource:
    """A whole repository: its runs are pieces, since all are read together."""

    def __init__(self, info: SourceInfo, folder: str) -> None:
        self.info = info
        self._folder = folder
        self._last_sign = NO_TIME

    def read(self, cursor: bytes | None, *, max_bytes: int = BATCH_BYTES) -> Batch:  # noqa: ARG002
        """Return everything if the repository changed since `cursor`, else nothing."""
        out = Builder()
        batch = out.batch
        top = self.info.root / self._folder
        size, newest = _size_of(top)
        self._last_sign = newest
        signature = [size, newest]
        kept = decode_cursor(cursor)
        batch.cursor = encode_cursor({"repository": signature})
        if kept is not None and kept.get("repository") == signature:
            return batch
        batch.replaced = cursor is not None
        if importlib.util.find_spec("aim") is None:
            self.info.note(_NEEDED)
            out.pass_over("Aim repositories, which need aim")
            return batch
        if size > _LARGEST:
            out.pass_over("Aim repositories of more than 1 GB")
            return batch
        for line in _read(top, out).split(b"\n"):
            row = parsed(line)
            if row is not None:
                self._take(row, out)
        return batch

    def _take(self, row: dict[str, Any], out: Builder) -> None:
        if "run" in row:
            self.info.pieces.append(Piece(f"{self._folder}/{row['run']}", f"{row['run']}/"))
            self.info.config[str(row["run"])] = row.get("params")
            return
        lists = [row.get(name) for name in ("steps", "times", "values")]
        if not all(type(values) is list for values in lists):
            out.pass_over("metrics that are no lists")
            return
        steps, times, values = (list(values or ()) for values in lists)
        for index, value in enumerate(values):
            number = as_number(value)
            moment = as_number(times[index]) if index < len(times) else None
            step = steps[index] if index < len(steps) else index
            if number is not None:
                piece = len(self.info.pieces) - 1
                out.add(
                    str(row.get("metric")), step, NO_TIME if moment is None else moment, number, piece=piece
                )

    def status(self, now: float) -> Status:  # noqa: ARG002
        """Return when the repository was last written."""
        return Status("unknown", last_sign=self._last_sign)

    def blob(self, ref: BlobRef, *, max_bytes: int = MAX_IMAGE_BYTES) -> bytes:
        """Return the bytes that an event refers to."""
        return read_blob(self.info.root, ref, max_bytes)


def _size_of(top: Path) -> tuple[int, float]:
    size, newest = 0, NO_TIME
    for folder, _, names in os.walk(top):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            size += status.st_size
            newest = status.st_mtime if not (newest >= status.st_mtime) else newest
    return size, newest


def _read(top: Path, out: Builder) -> bytes:
    """Copy the repository, which opening would change, and return what the child process says about it."""
    with tempfile.TemporaryDirectory(prefix="telemetry-aim-") as folder:
        copy = os.path.join(folder, ".aim")
        try:
            shutil.copytree(top, copy, symlinks=True)
            done = subprocess.run(
                [sys.executable, "-c", _PROGRAM, folder, str(_MEMORY)],
                capture_output=True,
                timeout=_LIMIT_S,
                check=False,
                cwd=folder,
            )
        except (OSError, shutil.Error, subprocess.TimeoutExpired) as error:
            out.pass_over(f"Aim repositories that cannot be read ({type(error).__name__})")
            return b""
        if done.returncode:
            out.pass_over("Aim repositories that Aim itself cannot read")
        return done.stdout[:_MOST_OUTPUT]


def sources_in(folder: Folder) -> Found:
    """Return the repository in a folder's `.aim`."""
    if ".aim" not in folder.folders:
        return Found()
    try:
        inside = set(os.listdir(folder.path / ".aim"))
    except OSError:
        return Found()
    if not {"meta", "seqs"} <= inside:
        return Found()
    info = SourceInfo(
        format=FORMAT,
        source_id=source_id(FORMAT, os.path.realpath(folder.path)),
        name=folder.path.name,
        root=folder.root,
    )
    if importlib.util.find_spec("aim") is None:
        info.note(_NEEDED)
    return Found([AimSource(info, folder.below(".aim"))], skipped=frozenset({".aim"}))
