"""`telemetry show --errors`: what failed in a run and where it hung, with stacks and counts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import printable
from toolkit.telemetry.cli.run_list import chosen_run
from toolkit.telemetry.cli.terminal import print_json
from toolkit.telemetry.diagnostics.error_details import details_of
from toolkit.telemetry.diagnostics.error_records import ErrorRecords
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.node_folders import record_files
from toolkit.telemetry.runfolder.reader import records_of
from toolkit.telemetry.runfolder.records import END, ERROR, FINDING, Record
from toolkit.telemetry.runfolder.untrusted import whole_in

_HANG: Final = "hang"
_MAX_RANKS: Final = 128
_LONGEST: Final = 500
_MOST_LINES: Final = 40
_FIRST_LINES: Final = 10

JSON_FORM: Final = """\
a list of error and finding records, as `metrics.jsonl` has them: the newest of each error and hang, with `count`."""


def run(args: argparse.Namespace) -> int:
    """Print each distinct error and each hang of the run."""
    folder = chosen_run(args.run)
    found = ErrorRecords()
    for record in _records_of(folder):
        event, rank = record.get("event"), whole_in(record.get("rank")) or 0
        if event == ERROR or (event == FINDING and record.get("kind") == _HANG):
            found.add(record, rank)
        elif event == END:
            found.add_end(record, rank)
    if args.json:
        print_json(list(found.newest.values()))
        return 0
    print(f"{printable(folder.name)}: {_summary(found)}")
    for record in found.newest.values():
        print()
        _print(record)
    return 0


def _records_of(folder: Path) -> Iterator[Record]:
    try:
        files = [*record_files(folder).values()]
    except OSError:
        files = [rank_file(folder, 0)]
    for path in files[: 1 + _MAX_RANKS]:
        yield from records_of(path)


# ------------------------------------------------------------ text


def _summary(found: ErrorRecords) -> str:
    hangs = sum(record.get("event") == FINDING for record in found.newest.values())
    errors = len(found.newest) - hangs
    times = sum(_count(record) for record in found.newest.values() if record.get("event") == ERROR)
    parts = ["no errors" if not errors else f"{errors} {'errors' if errors > 1 else 'error'}"]
    if times > errors:
        parts[0] += f", {times:,} times in total"
    if hangs:
        parts.append(f"{hangs} {'hangs' if hangs > 1 else 'hang'}")
    if found.of_telemetry:
        parts.append(f"{found.of_telemetry} in telemetry itself")
    return "; ".join(parts)


def _print(record: Record) -> None:
    _print_lines("  ", str(record.get("message") or record.get("type")).split("\n"))
    print(f"    {', '.join(_about(record))}")
    for detail in details_of(record):
        print(f"    {printable(detail.title)}:")
        _print_lines("      ", detail.text.split("\n"))


def _about(record: Record) -> list[str]:
    is_hang, step, times = record.get("event") == FINDING, record.get("global_step"), _count(record)
    return [
        *([f"rank {printable(str(record['rank']))}"] if record.get("rank") else []),
        *([f"step {step:,}"] if isinstance(step, int) else []),
        *([printable(str(record.get("state")))] if is_hang else [f"{times:,} times"] if times > 1 else []),
    ]


def _print_lines(indent: str, lines: list[str]) -> None:
    left_out = len(lines) - _MOST_LINES
    if left_out > 0:
        # The innermost call and the cause of a worker's exception come last.
        lines = [*lines[:_FIRST_LINES], f"… {left_out} lines …", *lines[_FIRST_LINES + left_out :]]
    for line in lines:
        print(f"{indent}{printable(line[:_LONGEST])}")


def _count(record: Record) -> int:
    count = record.get("count")
    return count if type(count) is int and count > 0 else 1
