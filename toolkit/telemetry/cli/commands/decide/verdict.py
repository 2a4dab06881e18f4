"""`telemetry verdict`: whether a run is really better than the best one so far, or more seeds are needed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from toolkit.telemetry.answers.verdict import MORE, verdict_on
from toolkit.telemetry.cli.argument_types import add_metric_arguments, metric_and_goal, whole
from toolkit.telemetry.cli.chosen_run import printable, refuse
from toolkit.telemetry.cli.run_list import ListedRun, list_runs, listed_runs, say_if_cut, source_for
from toolkit.telemetry.cli.terminal import (
    Column,
    add_json_argument,
    number_text,
    painted,
    print_json,
    print_table,
)
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.importers.source import Column as Points
from toolkit.telemetry.importers.summary import read_counted

JSON_FORM: Final = """\
an object with `answer` (`better`, `worse`, `not better` or `not decided`), `exit_code`, `sentence`, `sure`, `metric`, \
`goal` (`min` or `max`), `needed` (what to do next), `rests_on` (sentences) and `runs` (`group`, `run`, \
`place`, `value` or `null`, `counted`, `why` not). Where the noise is known also `improvement`, \
`improvement_needed`, `noise`, `p`, `level`, `tries` and `chances`: for so many `more` runs, how likely they show it \
to be `better` or `worse`."""

_MOST_NAMED: Final = 5
_STYLES: Final = {"better": "green", "worse": "red", "not better": "red", "not decided": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the runs and how they are compared."""
    parser.add_argument(
        "new", metavar="NEW", nargs="+", type=Path, help="the new run, its repeats, or a folder of them"
    )
    parser.add_argument(
        "--against", metavar="BEST", nargs="+", type=Path, required=True, help="the best one so far, likewise"
    )
    add_metric_arguments(parser)
    parser.add_argument("--tries", metavar="N", type=whole(), help="which try NEW is (default: counted)")
    how_many = "how many more runs it is worth (default: %(default)s)"
    parser.add_argument("--more", metavar="N", type=whole(1, 100), default=MORE, help=how_many)
    add_json_argument(parser)
    parser.epilog = (
        "Runs in the folder of a single NEW or BEST that differ from it in nothing but the seed count as its repeats. "
        "Exit code: 0 keep (better); 1 discard (worse, or not shown to be better); 3 run again (not decided); "
        "2 if a run could not be read."
    )


def run(args: argparse.Namespace) -> int:
    """Print the verdict."""
    lists = [listed_runs(paths) for paths in (args.new, args.against)]
    say_if_cut(run for runs in lists for run in runs)
    names = [{name for each in runs for name in each.card.evaluations} for runs in lists]
    if not (args.metric or names[0] & names[1]):
        new, best = (", ".join(sorted(side)[:_MOST_NAMED]) or "none" for side in names)
        return refuse(f"the runs share no metric: NEW has {new}; BEST has {best}")
    metric, goal = metric_and_goal(args, [sorted(names[0] & names[1])])
    guard = Guard()
    nearby = list_runs([runs[0].path.absolute().parent for runs in lists]).runs
    listed = {id(each.card): each for runs in (*lists, nearby) for each in runs}
    answer = verdict_on(
        [[each.card for each in runs] for runs in lists],
        [each.card for each in nearby],
        metric=metric,
        goal=goal,
        last_of=lambda card: guard.call("reading", _last, listed[id(card)], metric),
        are_single=[len(args.new) == 1, len(args.against) == 1],
        places=[str(args.new[0]), str(args.against[0])],
        tries=args.tries,
        more=args.more,
    )
    if isinstance(answer, str):
        return refuse(answer)
    if args.json:
        print_json(answer.as_json())
        return answer.exit_code
    print(painted(printable(answer.sentence), _STYLES[answer.answer]))
    print(f"How sure: {answer.sure}.\n")
    columns = [Column(""), Column("run"), Column(metric, right=True), Column("not counted, because")]
    shown = [
        (row["group"], row["run"], number_text(row["value"]), row["why"] or "") for row in answer.evidence
    ]
    print_table(columns, [[printable(cell) for cell in row] for row in shown])
    print("", *map(printable, (*answer.rests_on, f"Next: {answer.needed}")), sep="\n")
    return answer.exit_code


def _last(run: ListedRun, metric: str) -> float | None:
    def take(found: list[float], name: str, column: Points) -> None:
        if name == metric:
            found[:] = column.values[-1:]

    last = read_counted(source_for(run), list[float], take)
    return last[0] if last else None
