"""`telemetry show --completions`: what the model of a run answered, the newest or what is searched for."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections import deque
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import printable, refuse
from toolkit.telemetry.cli.run_list import as_given, found_at, say_if_cut
from toolkit.telemetry.importers.as_records import completions_of
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.reader import BadLine, Block, blocks_of, lines_of, parse_line
from toolkit.telemetry.runfolder.records import (
    COMPLETION,
    CUT,
    ENVELOPE,
    NAN_INF_DETECTED,
    NON_FINITE,
    Record,
)

_TEXTS: Final = ("prompt", "completion", "chosen", "rejected")
_NOT_IN_HEADING: Final = frozenset(
    {*ENVELOPE, *_TEXTS, "global_step", "kind", NAN_INF_DETECTED, NON_FINITE, CUT}
)
_NEEDLE: Final = b'"completion"'
_WIDTH: Final = 100
_ROWS: Final = 5

JSON_FORM: Final = """\
one record of the event `completion` per line, as `metrics.jsonl` has it."""


def run(args: argparse.Namespace) -> int:
    """Print the newest completions, newest last; return 1 if there are none."""
    runs = found_at(args.run).runs
    say_if_cut(runs)
    folder = as_given(runs[0].path, args.run) if runs[0].source is None else args.run
    records = chain.from_iterable(
        _completions_in(run.path / METRICS_JSONL) if run.source is None else completions_of(run.source)
        for run in runs
    )
    found: deque[Record] = deque(maxlen=args.rows or _ROWS)
    known = matching = 0
    for record in records:
        known += 1
        if _contains(record, args.search.casefold()):
            matching += 1
            found.append(record)
    if not found:
        refuse(
            f"{folder}: none of {known:,} completions contains {args.search!r}"
            if known
            else f"{folder} has no completions; log.log_completion(step, prompt=…, completion=…) writes one"
        )
        return 1

    if args.json:
        for record in found:
            print(json.dumps(record, allow_nan=False))
    else:
        _print(folder, found, matching, args.full)
    return 0


def _completions_in(path: Path) -> Iterator[Record]:
    for block in blocks_of(path):
        # Most blocks of most runs have no completions: skip them without parsing.
        if _NEEDLE in block.data:
            yield from _completions_of(block)


def _completions_of(block: Block) -> Iterator[Record]:
    for position, line in lines_of(block):
        if _NEEDLE in line:
            found = parse_line(position, line)
            if not isinstance(found, BadLine) and found.get("event") == COMPLETION:
                yield found


def _contains(record: Record, text: str) -> bool:
    return not text or any(text in str(record.get(name, "")).casefold() for name in _TEXTS)


def _print(folder: Path, found: deque[Record], matching: int, full: bool) -> None:
    print(f"{printable(folder.name)}: the newest {len(found):,} of {matching:,} completions")
    for record in found:
        print(f"\n{_heading(record)}")
        for name in _TEXTS:
            if record.get(name) is not None:
                print(_text(name, record[name], full))


def _heading(record: Record) -> str:
    words = [f"step {record.get('global_step', '?')}"]
    if record.get("kind"):
        words.append(str(record["kind"]))
    odd = record.get(NON_FINITE)
    shown = {**record, **odd} if isinstance(odd, dict) else record
    words += [f"{name} {_value(value)}" for name, value in shown.items() if name not in _NOT_IN_HEADING]
    return printable(" · ".join(words))


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:60]


def _text(name: str, value: Any, full: bool) -> str:
    """Return a text after its name, indented and without terminal control characters."""
    lines = [printable(line) for line in str(value).splitlines()] or [""]
    if not full:
        lines = [_beginning(" ".join(" ".join(lines).split()))]
    return f"  {name:<12}" + textwrap.indent("\n".join(lines), " " * 14).removeprefix(" " * 14)


def _beginning(text: str) -> str:
    """Return as many whole words as fit on a line, or part of a word in text without spaces, as in Chinese."""
    shortened = textwrap.shorten(text, _WIDTH, placeholder=" …")
    return shortened if len(shortened) > _WIDTH // 2 or len(text) <= _WIDTH else f"{text[: _WIDTH - 2]} …"
