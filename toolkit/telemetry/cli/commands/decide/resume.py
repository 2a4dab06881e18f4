"""`telemetry resume`: say whether each resume of a run continued the same training."""

from __future__ import annotations

import argparse
import textwrap
from typing import Final

from toolkit.telemetry.answers.evidence import RunEvidence, read_evidence
from toolkit.telemetry.answers.resume import answer_resumes
from toolkit.telemetry.cli.chosen_run import add_run_argument, printable, refuse
from toolkit.telemetry.cli.run_list import run_at, source_for
from toolkit.telemetry.cli.terminal import Column, add_json_argument, print_json, print_table, terminal_width
from toolkit.telemetry.diagnostics.resume.judge import DIFFERENT, SAME, Judgement

CANNOT_BE_SAID: Final = 3
"""Exit code: neither the same training nor a different one is shown."""

JSON_FORM: Final = """\
an object with `run`, `path`, `problem` (what could not be read, or `null`) and `resumes`, the newest first: \
`session`, `step`, `answer` (`same`, `different` or `cannot be said`), `cause` (of a different one), `others` (further \
causes), `sure`, `probability`, `cause_probability`, `sentence`, `how` (what the same training \
rests on), `doubles` (losses that exist twice), `needed` (what would say more), and `evidence`: rows \
of `what` was compared, `before`, `after`, `differs` (`null`: it does, on purpose), `cause` and `note`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and the output format."""
    add_run_argument(parser)
    add_json_argument(parser)
    parser.epilog = (
        "Compares the steps that exist twice, batches, saved and loaded state, learning rate, settings and code. "
        "The newest resume counts for the exit code: 0 the same training (or never resumed), 1 a different one, "
        "3 it cannot be said, 2 the run could not be read."
    )


def run(args: argparse.Namespace) -> int:
    """Print the answer about each resume; the exit code is that of the newest."""
    chosen = run_at(args.run)
    if isinstance(chosen, str):
        return refuse(chosen)
    found = read_evidence(source_for(chosen))
    if found.problem is not None and not found.sessions:
        return refuse(found.problem)
    answers = answer_resumes(found)
    if args.json:
        print_json(
            {
                "run": found.name,
                "path": str(found.path),
                "problem": found.problem,
                "resumes": [answer.as_json() for answer in answers],
            }
        )
    elif answers:
        for answer in answers:
            _print(answer)
    else:
        print(printable(_without(found)))
    if not answers or answers[0].answer == SAME:
        return 0
    return 1 if answers[0].answer == DIFFERENT else CANNOT_BE_SAID


def _without(found: RunEvidence) -> str:
    count = sum(bool(session.steps) for session in found.sessions)
    if not count:
        return f"{found.name} has no step yet: there is no resume to judge."
    return f"{found.name} was never resumed: it has one session with steps."


def _print(answer: Judgement) -> None:
    print(textwrap.fill(printable(f"{answer.sentence} Sure: {answer.sure}."), min(terminal_width(), 110)))
    if answer.evidence:
        print()
        print_table(
            [Column("compared"), Column("before"), Column("after"), Column("")],
            [(row.what, row.before, row.after, row.said) for row in answer.evidence],
        )
    for line in answer.needed:
        print(f"to say more: {line}")
    print()
