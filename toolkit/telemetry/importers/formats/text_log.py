"""Text logs, only where one is asked for: no rule for them is sure."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import LinesSource, Stream
from toolkit.telemetry.importers.source import (
    MAX_METRICS,
    NO_STEP,
    NO_TIME,
    Builder,
    SourceInfo,
    as_number,
    as_step,
    run_info,
)

FORMAT: Final = "text"
_LONGEST: Final = 4_000
_NUMBER: Final = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)"
_PLAIN: Final = re.compile(rf"(\d+)\s+([A-Za-z][\w./-]*)\s+({_NUMBER})\s*$", re.IGNORECASE)
_STEP: Final = re.compile(
    r"(?:\b(?:step|iter|iteration|global_step)s?\b\s*(?:[:=#]\s*)?|^s[:=])\[?(\d+)", re.IGNORECASE
)
_UNIT: Final = r"[nuµm]?s|sec|min|h|%|[KMGT]?i?B|[a-z]+/s(?:ec)?|s/it"
# From the start of a word on, and not without end: a line of one letter would take a minute.
_PAIR: Final = re.compile(
    rf"(?<![A-Za-z0-9_./-])([A-Za-z][\w./-]{{0,200}})\s*[:=]\s*({_NUMBER})({_UNIT})?(?![\w.%])",
    re.IGNORECASE,
)
_BAR: Final = re.compile(r"\|\s*(\d+)/\d+\s*\[")


class TextLogSource(LinesSource):
    """A log of lines: "step name value", "step:1/20 name:value", `Step 1 | loss: 0.5`, a dict a line, bars of tqdm."""

    def __init__(self, info: SourceInfo, path: str) -> None:
        super().__init__(info)
        self._path = path

    def streams(self) -> Sequence[Stream]:
        """Return the one file."""
        return [Stream(self._path)]

    def line(self, stream: Stream, line: bytes, state: dict[str, Any], out: Builder) -> None:  # noqa: ARG002
        """Add what each part of a line between carriage returns has."""
        for part in line.split(b"\r"):
            if part.strip():
                words = part[:_LONGEST].decode("utf-8", "replace").strip()
                if not _add_line(words, state, out):
                    out.pass_over("lines that match no rule")

    def at_end(self, stream: Stream, rest: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:  # noqa: ARG002
        """Leave a line without its end: its number may get more digits."""
        return 0


def _add_line(words: str, state: dict[str, Any], out: Builder) -> bool:
    match = _PLAIN.match(words)
    if match:
        step = as_step(int(match[1][:18]))
        if step < state.get("step", step):
            state["session"] = state.get("session", 0) + 1
        state["step"] = step
        out.add(match[2], step, NO_TIME, float(match[3]), session=state.get("session", 0))
        return True
    if words.startswith("{") and words.endswith("}"):
        return _add_dict(words, state, out)
    found = _STEP.search(words) or _BAR.search(words)
    if not found:
        return False
    step = as_step(int(found[1][:18]))
    pairs = [pair for pair in _PAIR.findall(words) if not _STEP.match(f"{pair[0]}:1")]
    units = state.setdefault("units", {})
    for name, value, unit in pairs[:200]:
        if len(units) < MAX_METRICS and units.setdefault(name, unit) != unit:
            out.pass_over(f"values in another unit than the first ({unit or 'none'})")
        else:
            _add(name, step, float(value), state, out)
    return bool(pairs)


def _add(name: str, step: int, value: float, state: dict[str, Any], out: Builder) -> None:
    """Add a point once its name, or any other, is at a second step: what is on one line at the start is a setting."""
    held: dict[str, list[Any]] = state.setdefault("held", {})
    session = state.get("session", 0)
    if name in held and held[name][0] != step:
        first, text = held.pop(name)
        out.add(name, first, NO_TIME, float(text), session=session)
        state["runs"] = True
    if name not in held and state.get("runs"):
        out.add(name, step, NO_TIME, value, session=session)
    elif len(held) < MAX_METRICS:
        # As a text: a cursor is JSON, which has no NaN.
        held.setdefault(name, [step, repr(value)])


def _add_dict(words: str, state: dict[str, Any], out: Builder) -> bool:
    try:
        row = ast.literal_eval(words)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False
    if type(row) is not dict:
        return False
    step = next((as_step(row[name]) for name in ("step", "global_step") if name in row), NO_STEP)
    if step == NO_STEP:
        # Hugging Face prints no step: its rows are counted.
        step = state["row"] = state.get("row", -1) + 1
    numbers = [
        (str(name), as_number(value)) for name, value in row.items() if name not in ("step", "global_step")
    ]
    for name, value in numbers:
        if value is not None:
            _add(name, step, value, state, out)
    return any(value is not None for _, value in numbers)


def source_of_file(path: Path) -> TextLogSource:
    """Return the run of a text log that was named."""
    info = run_info(FORMAT, os.path.realpath(path), path.stem, path.parent, [path.name])
    return TextLogSource(info, path.name)
