"""`telemetry import`: make run folders of other tools' logs."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Final

from toolkit.cli.argument_types import seconds
from toolkit.cli.chosen_run import LOGS, printable
from toolkit.cli.terminal import Progress, add_json_argument, print_json
from toolkit.exchange.import_run import (
    NEW,
    NOT_READ,
    REPLACED,
    UNCHANGED,
    Importer,
    Outcome,
    runs_of,
)
from toolkit.importers.detect import find_sources, names_of
from toolkit.importers.source import RunSource

_MOST_NAMED: Final = 5

JSON_FORM: Final = """\
an object with `to`, `dry_run`, `runs` and `notes`. Each run has `name`, `format`, `source_id`, `run_id` (of its run \
folder), `state` (`new`, `continued`, `unchanged`, `replaced` or `failed`), `folder`, `points`, `records`, `sessions`, \
`events` (texts, samples and histograms by kind), `not_imported` (a reason and how many) and `reason` (why it was \
not imported, or `null`). Counts are of what this command added, but for `sessions` and `not_imported`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sources, the log directory, and how to go about it."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="+",
        type=Path,
        help="a file or folder of another tool; every run below a folder is imported",
    )
    parser.add_argument(
        "--to",
        metavar="LOG_DIR",
        type=Path,
        default=LOGS,
        help=f"where run folders are made (default: {LOGS})",
    )
    parser.add_argument("--name", metavar="NAME", help="name of the run, where SOURCE is only one")
    parser.add_argument(
        "--format", metavar="FORMAT", choices=names_of(), help="read SOURCE in this format only"
    )
    parser.add_argument(
        "--follow", action="store_true", help="keep adding what is new, until every run has ended or is quiet"
    )
    parser.add_argument(
        "--interval",
        metavar="S",
        type=seconds,
        default=2.0,
        help="with --follow: look every S seconds (default: 2)",
    )
    parser.add_argument(
        "--quiet",
        metavar="S",
        type=seconds,
        default=300.0,
        help="with --follow: stop after S seconds without anything new (default: 300)",
    )
    parser.add_argument(
        "--again", action="store_true", help="import a source that was rewritten into a new folder"
    )
    parser.add_argument(
        "--deleted", action="store_true", help="also import runs that their tool shows as deleted"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be imported, and write nothing"
    )
    add_json_argument(parser)
    parser.epilog = (
        "Importing again adds only what is new. Nothing in SOURCE is changed. "
        "Exit code 1: some runs could not be read or were rewritten; 2: nothing could be imported."
    )


def run(args: argparse.Namespace) -> int:
    """Import every run; return 1 if some could not be, and 2 if none could."""
    try:
        if not args.follow:
            outcomes, notes = _once(args)
            return _report(args, outcomes, notes)
        return _follow(args)
    except OSError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2


def _once(args: argparse.Namespace) -> tuple[list[Outcome], list[str]]:
    """Look for runs and import them.

    Raises:
        OSError: a source does not exist, or the log directory cannot be written.
    """
    sources: list[RunSource] = []
    notes: list[str] = []
    for path in args.source:
        found = find_sources(path, only=args.format)
        sources += found.runs
        notes += found.notes
    runs = list(runs_of(sources, deleted=args.deleted))
    if args.name is not None and len(runs) > 1:
        raise OSError(f"--name needs one run, and there are {len(runs)}")
    importer = Importer(args.to, again=args.again, dry_run=args.dry_run)
    progress = Progress()
    outcomes = []
    for number, source in enumerate(runs):
        progress.show(f"importing {source.info.name}", number, len(runs))
        outcomes.append(importer.run(source, name=args.name))
    progress.clear()
    return outcomes, notes


def _follow(args: argparse.Namespace) -> int:
    whole: dict[str, Outcome] = {}
    notes: list[str] = []
    last_new = time.monotonic()
    try:
        while True:
            outcomes, notes = _once(args)
            for outcome in outcomes:
                if outcome.records:
                    last_new = time.monotonic()
                    if not args.json and outcome.source_id in whole:
                        print(printable(_line(outcome)), flush=True)
                if outcome.source_id not in whole and not args.json:
                    _print(outcome)
                _merge(whole, outcome)
            is_quiet = time.monotonic() - last_new >= args.quiet
            if is_quiet or (outcomes and not any(outcome.is_open for outcome in outcomes)):
                break
            time.sleep(args.interval)
    except KeyboardInterrupt:
        if not whole:
            raise
    if args.json:
        _print_json(args, list(whole.values()), notes)
    return _code(list(whole.values()))


def _merge(whole: dict[str, Outcome], outcome: Outcome) -> None:
    """Add what one look brought to what was imported before."""
    before = whole.setdefault(outcome.source_id, outcome)
    if before is outcome:
        return
    before.points += outcome.points
    before.records += outcome.records
    for kind, count in outcome.events.items():
        before.events[kind] = before.events.get(kind, 0) + count
    before.sessions, before.folder = outcome.sessions, outcome.folder
    before.not_imported, before.reason = outcome.not_imported, outcome.reason
    if outcome.state in (REPLACED, NOT_READ) or before.state in (REPLACED, NOT_READ, UNCHANGED):
        before.state = outcome.state


def _report(args: argparse.Namespace, outcomes: list[Outcome], notes: list[str]) -> int:
    if args.json:
        _print_json(args, outcomes, notes)
    else:
        for outcome in outcomes:
            _print(outcome, is_dry=args.dry_run)
        for note in notes:
            print(printable(note), file=sys.stderr)
    if not outcomes:
        named = ", ".join(map(str, args.source))
        print(printable(f"no run of another tool found in {named}"), file=sys.stderr)
    return _code(outcomes)


def _code(outcomes: list[Outcome]) -> int:
    bad = [outcome for outcome in outcomes if outcome.state in (REPLACED, NOT_READ)]
    return 2 if len(bad) == len(outcomes) else 1 if bad else 0


def _print_json(args: argparse.Namespace, outcomes: list[Outcome], notes: list[str]) -> None:
    found = {
        "to": os.fspath(args.to),
        "dry_run": args.dry_run,
        "runs": [outcome.as_json() for outcome in outcomes],
        "notes": notes,
    }
    print_json(found)


def _print(outcome: Outcome, *, is_dry: bool = False) -> None:
    if outcome.state in (REPLACED, NOT_READ):
        print(printable(f"{outcome.name}: {outcome.reason}"), file=sys.stderr)
        return
    print(printable(_line(outcome, is_dry=is_dry)))
    for reason, count in list(outcome.not_imported.items())[:_MOST_NAMED]:
        print(printable(f"  not imported: {count:,} {reason}"))
    if len(outcome.not_imported) > _MOST_NAMED:
        print(f"  and {len(outcome.not_imported) - _MOST_NAMED} other reasons")


def _line(outcome: Outcome, *, is_dry: bool = False) -> str:
    place = outcome.folder if outcome.folder is not None else f"{outcome.name} ({outcome.format})"
    if not outcome.records:
        return f"{place}: nothing new"
    parts = [
        f"{outcome.points:,} points",
        f"{outcome.sessions} session{'s' if outcome.sessions != 1 else ''}",
    ]
    parts += [f"{count:,} {kind}{'s' if count != 1 else ''}" for kind, count in outcome.events.items()]
    would = "would add " if is_dry else "" if outcome.state == NEW else "added "
    return f"{place}: {would}{', '.join(parts)} from {outcome.format}"
