"""`telemetry logs`: show what a run printed, search it, and follow it."""

from __future__ import annotations

import argparse
import json
import re
import time
from itertools import islice
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.argument_types import whole
from toolkit.telemetry.cli.chosen_run import CommandError, add_run_argument, printable, refuse
from toolkit.telemetry.cli.run_list import chosen_run, status_of
from toolkit.telemetry.cli.terminal import add_json_argument, clock_text, painted
from toolkit.telemetry.runfolder.evidence.output_log import (
    NOTE,
    OTHER,
    STDERR,
    STREAMS,
    OutputLine,
    OutputLog,
)
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.reader import records_of
from toolkit.telemetry.runfolder.records import STEP
from toolkit.telemetry.runfolder.status import RUNNING, STALLED
from toolkit.telemetry.runfolder.untrusted import number_in

JSON_FORM: Final = """\
one line of output per line: an object with `number` (from 0 on), `time` (seconds since the epoch; `null` where it is \
not known), `stream` (`stdout`, `stderr`, `other` for C code and child processes, `note` for telemetry itself, or \
`null`), `session` and `text`."""

_LOOK_EVERY_S: Final = 0.5
_STYLES: Final = {STREAMS[STDERR]: "yellow", STREAMS[OTHER]: "dim", STREAMS[NOTE]: "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run, and which lines of it."""
    add_run_argument(parser)
    parser.add_argument(
        "-n", "--lines", metavar="N", type=whole(), default=50, help="the last N lines (default: 50)"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="print new lines as they come, until the run ends"
    )
    parser.add_argument(
        "--grep", metavar="PATTERN", help="only lines in which this regular expression is found, in any case"
    )
    parser.add_argument(
        "--around", metavar="STEP", type=whole(0), help="the lines before and after this step was logged"
    )
    parser.add_argument(
        "--rank", metavar="N", type=whole(0), default=0, help="what this rank printed (default: 0)"
    )
    parser.add_argument("--stderr", action="store_true", help="only standard error")
    add_json_argument(parser, "lines as JSON, one per line")
    parser.epilog = "Following ends with the run, or with Ctrl-C."


def run(args: argparse.Namespace) -> int:
    """Print lines; return 2 if there are none to read."""
    folder = chosen_run(args.run)
    try:
        matches = re.compile(args.grep or "", re.IGNORECASE).search
    except (re.error, OverflowError, RecursionError) as error:
        return refuse(f"--grep is {args.grep!r}, which is not a regular expression: {error}")
    if args.follow and args.around is not None:
        return refuse("--follow and --around exclude each other: one is about now, the other about a step")

    def is_shown(line: OutputLine) -> bool:
        return bool(matches(line.text)) and (not args.stderr or line.stream == STREAMS[STDERR])

    with OutputLog(folder, args.rank) as log:
        if not log.exists:
            return refuse(log.problem or f"{log.path} cannot be read")
        if log.problem is not None:
            refuse(log.problem)
        upto = log.count - (args.follow and log.is_last_open)
        if args.around is not None:
            when = _time_of(folder / METRICS_JSONL, args.around)
            upto = min(log.count, log.around(when) + args.lines // 2)
        for line in reversed([*islice(filter(is_shown, log.newest_first(upto)), args.lines)]):
            _print(line, args)
        identity, last = log.identity, log.lines(upto - 1, upto)
    while args.follow:
        # Looked at before the lines: what is printed before the end is shown before this stops.
        is_live = status_of(folder) in (RUNNING, STALLED)
        with OutputLog(folder, args.rank) as log:
            start = upto
            if log.identity != identity:
                # It was cut, and its lines have other numbers.
                identity = log.identity
                since = last[0].time if last else None
                start = log.at_time(since) + 1 if since is not None else 0
            # A line that is being written is printed when it is complete.
            upto = max(start, log.count - (is_live and log.is_last_open))
            for line in log.lines(start, upto):
                last = [line]
                if is_shown(line):
                    _print(line, args)
        if upto <= start:
            if not is_live:
                break
            time.sleep(_LOOK_EVERY_S)
    return 0


def _time_of(path: Path, step: int) -> float:
    """Return when a step was logged last, or the first one after it. Raises CommandError if that is not known."""
    found: float | None = None
    best, low, high = -1, -1, -1
    for record in records_of(path):
        at, time_s = record.get("global_step"), number_in(record.get("time"))
        if record.get("event") != STEP or type(at) is not int or time_s is None:
            continue
        low, high = at if low < 0 else min(low, at), max(high, at)
        # Steps in between are folded into the next record.
        if at >= step and (found is None or at <= best):
            best, found = at, time_s
    if found is None:
        there = f"its steps are {low:,} to {high:,}" if high >= 0 else "it has logged no step"
        raise CommandError(f"--around is {step}, and the run has no such step: {there}")
    return found


def _print(line: OutputLine, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(line._asdict(), allow_nan=False), flush=True)
        return
    text = painted(printable(line.text.expandtabs()), _STYLES.get(line.stream or "", ""))
    print(f"{clock_text(line.time)} {text}", flush=True)
