"""The run folders of a log directory: which there are, and when one of their files was last written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_JSONL
from toolkit.telemetry.runfolder.safefile import open_regular

Signature = tuple[int, ...]

_LARGEST: Final = 1024**2
_OUR_KEYS: Final = frozenset({"format", "run_id", "sessions"})


def is_run_folder(folder: Path) -> bool:
    """Return whether `folder` is one that a run wrote or started to write."""
    is_named_so = any(os.path.lexists(folder / name) for name in (METRICS_JSONL, MANIFEST))
    return is_named_so and another_programs_file(folder) is None


def another_programs_file(folder: Path) -> str | None:
    """Return the name of the file that shows that `folder` is not ours; None if nothing shows it.

    Sacred has a `run.json` too, and ClearML a `metrics.jsonl`. A file that is damaged or cannot be read may be ours.
    """
    data = _start_of(folder / MANIFEST)
    if data is not None:
        found = _parsed(data)
        return MANIFEST if type(found) is dict and found and _OUR_KEYS.isdisjoint(found) else None
    line = (_start_of(folder / METRICS_JSONL) or b"").lstrip().partition(b"\n")[0]
    found = _parsed(line)
    is_object = type(found) is dict and type(found.get("event")) is not str
    return METRICS_JSONL if line.startswith(b"[") or is_object else None


def _start_of(path: Path) -> bytes | None:
    """Return the first megabyte of a file; None if it cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(_LARGEST)
    except OSError:
        return None


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def folders_in(place: Path, links: list[str] | None = None) -> list[str]:
    """Return the names of the folders in `place`, sorted, without hidden ones; names of links are added to `links`.

    Raises:
        OSError: it cannot be listed.
    """
    found = []
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink():
                if links is not None:
                    links.append(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
    return sorted(found)


def run_folders(places: Iterable[Path]) -> list[Path]:
    """Return the run folders among `places` and directly below them; links below them are not followed.

    Raises:
        OSError: a place cannot be listed.
    """
    found: dict[Path, None] = {}
    for place in places:
        if is_run_folder(place):
            found[place] = None
        else:
            below = (place / name for name in folders_in(place))
            found.update(dict.fromkeys(folder for folder in below if is_run_folder(folder)))
    return list(found)


def signature_of(path: Path) -> Signature:
    """Return what changes when the file is replaced or written; empty if it is missing."""
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino
