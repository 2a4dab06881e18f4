"""`telemetry report`: write runs as one HTML file with their data inside, or as Markdown to paste."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import LOGS, CommandError
from toolkit.telemetry.cli.report_content import (
    STDOUT,
    content_of,
    require_columns,
    write_report,
    written_text,
)
from toolkit.telemetry.cli.run_list import ListedRun, label_runs, listed_runs, run_at
from toolkit.telemetry.cli.terminal import Progress, add_json_argument, print_json
from toolkit.telemetry.reports.document import Document
from toolkit.telemetry.reports.html_page import to_html
from toolkit.telemetry.reports.markdown import to_markdown
from toolkit.telemetry.reports.overview import overview

OVERVIEW: Final = "overview"
COMPARE: Final = "compare"
SWEEP: Final = "sweep"

JSON_FORM: Final = """\
an object with `view`, `runs` (their names), `title`, `verdict`, and `html` and `markdown`: the files that were \
written, or `null`. Without a file, or with `--markdown -`, `text` is the Markdown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the runs and the files to write."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        type=Path,
        help=f"runs, ours or other tools', or a folder of runs (default: the newest run in {LOGS})",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="write one HTML file with curves and data, which opens without a network",
    )
    parser.add_argument(
        "--markdown",
        metavar="FILE",
        help=f"write a summary to paste into a chat; {STDOUT} prints it (default, without --html)",
    )
    parser.add_argument(
        "--view",
        choices=(OVERVIEW, COMPARE, SWEEP),
        help="one run in full, several side by side, or which settings of many explain the best "
        "(default: overview of one run, compare of several, sweep of a folder of runs)",
    )
    parser.add_argument(
        "--metric", metavar="NAME", help="compare by this metric (default: one that they share)"
    )
    add_json_argument(parser)
    parser.epilog = (
        "Secrets in settings and messages are masked. For a run to post, with names and paths replaced too: "
        "`telemetry export --to zip`. It needs the extra `dashboard`. "
        "Exit code: 0; 2 if a run cannot be read or a file cannot be written."
    )


def run(args: argparse.Namespace) -> int:
    """Write the report; return 2 if a run cannot be read or the file cannot be written."""
    runs, view = _chosen(args.runs, args.view)
    runs = label_runs(runs)
    with Progress() as progress:
        document = _document(runs, view, args.metric, progress, is_chosen=len(args.runs) > 1)
    return _write(document, args, runs, view)


def _chosen(paths: Sequence[Path], view: str | None) -> tuple[list[ListedRun], str]:
    """Return the runs and the view. Raises OSError if there are none."""
    if len(paths) > 1:
        if view == OVERVIEW:
            raise CommandError(
                f"an overview is of one run, and {len(paths)} are named; leave out --view, or name one"
            )
        return [*map(run_at, paths)], view or COMPARE
    place = paths[0] if paths else LOGS
    below = listed_runs([place]) if paths or view not in (None, OVERVIEW) else []
    if view == OVERVIEW or (view is None and len(below) < 2):
        return [run_at(place)], OVERVIEW
    if len(below) == 1:
        raise CommandError(f"{place} has one run, and {view} needs several")
    # The newest is the last.
    return below[::-1], view or SWEEP


def _document(
    runs: Sequence[ListedRun], view: str, metric: str | None, progress: Progress, *, is_chosen: bool
) -> Document:
    require_columns()
    if view == SWEEP:
        from toolkit.telemetry.reports.sweep import sweep_report

        cards = [replace(run.card, name=run.called) for run in runs]
        return sweep_report(cards, metric=metric, is_chosen=is_chosen)
    from toolkit.telemetry.reports.compare import MAX_RUNS, compare
    from toolkit.telemetry.reports.stored_run import points_for

    # The newest ones; the report says how many there are.
    shown = runs[-MAX_RUNS:]
    contents = [content_of(run, points=points_for(len(shown)), on_work=progress.show) for run in shown]
    return overview(contents[0]) if view == OVERVIEW else compare(contents, metric=metric, total=len(runs))


def _write(document: Document, args: argparse.Namespace, runs: Sequence[ListedRun], view: str) -> int:
    to_print = args.markdown == STDOUT or (args.markdown is None and args.html is None)
    files: list[tuple[Path, str]] = []
    if args.html is not None:
        files.append((args.html, to_html(document)))
    if args.markdown is not None and not to_print:
        files.append((Path(args.markdown), to_markdown(document)))
    for target, text in files:
        write_report(target, text)
    if args.json:
        found: dict[str, Any] = {
            "view": view,
            "runs": [run.called for run in runs],
            "title": document.title,
            "verdict": document.verdict,
            "html": None if args.html is None else str(args.html),
            "markdown": None if args.markdown is None or to_print else str(args.markdown),
        }
        print_json({**found, **({"text": to_markdown(document)} if to_print else {})})
        return 0
    if to_print:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Replace characters that the terminal cannot show.
            sys.stdout.reconfigure(errors="replace")
        print(to_markdown(document), end="")
    for target, _ in files:
        # Markdown on stdout may go to a file of its own.
        print(written_text(target), file=sys.stderr if to_print else sys.stdout)
    return 0
