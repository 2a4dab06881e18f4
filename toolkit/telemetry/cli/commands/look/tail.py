"""`telemetry tail`: print the last records of a run, and new ones as they come."""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.argument_types import whole
from toolkit.telemetry.cli.chosen_run import add_format_argument, add_run_argument, printable, refuse
from toolkit.telemetry.cli.run_list import as_given, last_records, run_at, say_if_cut, status_of
from toolkit.telemetry.cli.terminal import (
    add_json_argument,
    clock_text,
    number_text,
    painted,
    shortened,
    terminal_width,
)
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.importers.as_records import records_in
from toolkit.telemetry.importers.source import BATCH_BYTES, RunSource
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.metrics import metrics_of
from toolkit.telemetry.runfolder.reader import read_from
from toolkit.telemetry.runfolder.records import (
    END,
    ENVELOPE,
    LEDGER,
    NON_FINITE,
    SPAN,
    SPAN_EVENT,
    SPAN_START,
    SPAN_SUMMARY,
    STATE,
    Record,
    is_spread,
)
from toolkit.telemetry.runfolder.status import RUNNING, STALLED

JSON_FORM: Final = """\
one record per line, as `metrics.jsonl` has it. Of another tool's run, a line has `event` (`step`, `eval`, `epoch` or \
`system`), `time`, `global_step`, `session`, and the metrics of that step by name."""

_LOOK_EVERY_S: Final = 0.5
_FEW: Final = 8
"""Values on a line, unless they are chosen with --metrics."""
_HIDDEN: Final = frozenset({SPAN, SPAN_START, SPAN_EVENT, SPAN_SUMMARY, LEDGER, STATE})
"""Events that are shown only with --all."""
_NOT_SHOWN: Final = frozenset({*ENVELOPE, "global_step", NON_FINITE})
_LONGEST: Final = 60
_FOLDED: Final = "steps_folded"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run, how many records, and whether to follow it."""
    add_run_argument(parser)
    parser.add_argument(
        "-n", "--rows", metavar="N", type=whole(), default=10, help="the last N records (default: 10)"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="print new records as they come, until the run ends"
    )
    parser.add_argument(
        "--metrics",
        "--metric",
        metavar="GLOB",
        action="append",
        default=[],
        help="only metrics whose names match, such as 'train/*'; may be repeated",
    )
    parser.add_argument("--all", action="store_true", help="also spans and time ledgers")
    add_format_argument(parser)
    add_json_argument(parser, "records as JSON, one per line")
    parser.epilog = (
        "RUN may also be a file or folder of another tool with one run in it. "
        "Following ends with the run, or with Ctrl-C."
    )


def run(args: argparse.Namespace) -> int:
    """Print records; return 2 if there are none to read."""
    found = run_at(args.run, args.format)
    say_if_cut([found])
    if found.source is None:
        return _tail_ours(as_given(found.path, args.run), args)
    return _tail_foreign(found.source, args)


# ------------------------------------------------------------ ours


def _tail_ours(folder: Path, args: argparse.Namespace) -> int:
    path = folder / METRICS_JSONL
    last, cursor = last_records(path, args.rows, lambda record: _is_shown(record, args))
    for record in last:
        _print(record, args)
    while args.follow:
        # Looked at before the records: what is written before the end is printed before it stops.
        is_live = status_of(folder) in (RUNNING, STALLED)
        chunk = read_from(path, cursor)
        cursor = chunk.cursor
        if chunk.replaced:
            refuse(f"{path} was replaced: reading it from its start")
        for record in chunk.records:
            if _is_shown(record, args):
                _print(record, args)
        if not chunk.records and not is_live:
            break
        if not chunk.records:
            time.sleep(_LOOK_EVERY_S)
    return 0


def _is_shown(record: Record, args: argparse.Namespace) -> bool:
    if args.metrics:
        return any(_is_chosen(name, args.metrics) for name, _ in metrics_of(record))
    return args.all or record.get("event") not in _HIDDEN


# ------------------------------------------------------------ other tools'


def _tail_foreign(source: RunSource, args: argparse.Namespace) -> int:
    guard = Guard()
    rows: deque[Record] = deque(maxlen=args.rows)
    cursor: Any = None
    is_first = True
    while True:
        status = guard.call("asking for the status", source.status, time.time())
        batch = guard.call("reading", source.read, cursor, max_bytes=BATCH_BYTES)
        if batch is None:
            return refuse(f"{args.run} could not be read: {', '.join(guard.counts)}")
        if batch.replaced and not is_first:
            refuse(f"{args.run} was rewritten: reading it from its start")
        rows.extend(row for row in records_in(source.info, batch) if _is_shown(row, args))
        has_more = batch.more and batch.cursor != cursor
        is_new = batch.cursor != cursor
        cursor = batch.cursor
        if is_first and has_more:
            continue
        is_first = False
        for record in rows:
            _print(record, args)
        rows = deque()
        if not args.follow:
            return 0
        if not is_new and status is not None and status.state in ("finished", "failed"):
            return 0
        if not has_more:
            time.sleep(_LOOK_EVERY_S)


# ------------------------------------------------------------ a record as a line


def _print(record: Record, args: argparse.Namespace) -> None:
    if args.json:
        # JSON has no NaN: such a value is null, and named in `non_finite`.
        chosen = {
            name: None if name in record.get(NON_FINITE, ()) else value
            for name, value in record.items()
            if not args.metrics or name in _NOT_SHOWN or _is_chosen(name, args.metrics)
        }
        print(json.dumps(chosen, allow_nan=False), flush=True)
        return
    event = str(record.get("event"))
    step = record.get("global_step")
    begin = f"{clock_text(record.get('time'))} {event[:14]:<8} {f'{step:,}' if isinstance(step, int) else '':>9}  "
    values = shortened(_values(record, args), terminal_width() - len(begin))
    style = "red" if event == "error" else "yellow" if event == "finding" else ""
    print(painted(printable(begin + values), style), flush=True)


def _values(record: Record, args: argparse.Namespace) -> str:
    metrics = dict(metrics_of(record))
    if metrics:
        chosen = [name for name in metrics if _is_chosen(name, args.metrics or "*")]
        if not args.metrics:
            chosen = [name for name in chosen if name != _FOLDED and not is_spread(name, metrics)]
        shown = chosen if args.metrics else chosen[:_FEW]
        more = len(chosen) - len(shown)
        text = "  ".join(f"{name}={number_text(metrics[name])}" for name in shown)
        return f"{text}  (+{more})" if more else text
    if record.get("event") == END:
        return f"status={record.get('status')}"
    parts = []
    for name, value in record.items():
        if name not in _NOT_SHOWN and value is not None and not isinstance(value, (dict, list)):
            parts.append(f"{name}={shortened(_text(value), _LONGEST)}")
    return "  ".join(parts[:_FEW])


def _text(value: Any) -> str:
    return number_text(value) if type(value) is float else str(value)


def _is_chosen(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
