"""Whether files with the names of ours were written by another program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.runfolder.layout import MANIFEST, METRICS_JSONL
from toolkit.runfolder.safefile import open_regular
from toolkit.runfolder.script_interrupts import pass_on_interrupt

_LARGEST: Final = 1024**2
_OUR_KEYS: Final = frozenset({"format", "run_id", "sessions"})


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
    except OSError as error:
        pass_on_interrupt(error)
        return None


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
