"""`telemetry why`: why two runs differ, or whether a resumed run continued the same training, and if not, why."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Final

from toolkit.telemetry.answers.evidence import RunEvidence, read_evidence
from toolkit.telemetry.answers.resume import answer_resumes
from toolkit.telemetry.answers.why import LEAST, Why, why
from toolkit.telemetry.cli.chosen_run import LOGS, printable, refuse
from toolkit.telemetry.cli.run_list import list_runs, run_at, say_if_cut, source_for
from toolkit.telemetry.cli.terminal import (
    Column,
    add_json_argument,
    painted,
    print_json,
    print_table,
    terminal_width,
)
from toolkit.telemetry.diagnostics.resume.judge import Judgement
from toolkit.telemetry.runs.store import RunCard

JSON_FORM: Final = """\
an object. Of two runs: `runs` (two names), `answer` (`equal`, `differ` or `cannot be said`), `sentence`, `sure`, \
`step` (the first that differs, as the first run counts, or `null`), `departure` (`how`: `bits`, `jump`, `level`, \
`growth` or \
`null`; `metric`; `records` that both have), `causes` (likely first: `kind`, `what`, `a`, `b`, `note`, `because`, \
`share`), `without_effect` (the same without `share`), `code` (`path` and `diff` of each file), `evidence` (`what`, \
`found`), `needed` (what was not recorded) and `explained` (`null`, or by the other runs of the folder: `metric`, \
`difference` at the end, `shares` with `what`, `size`, `low`, `high` and `note`, `rests_on`). Of one run: `run`, \
`path`, `problem` (what could not be read, or `null`) and `resumes`, the newest first: `session`, `step`, `answer` \
(`same`, `different` or `cannot be said`), `cause` and its `area` (of a different one), `others` (further causes), \
`sure`, `probability`, `cause_probability`, `sentence`, `how` (what the same training rests on), `doubles` (losses \
that exist twice), `runs` (two names where a run looks like the continuation of another, else empty), `needed` (what \
would say more), and \
`evidence`: rows of `what` was compared, `before`, `after`, `differs` (`null`: it does, on purpose), `cause` and \
`note`."""

_CODES: Final = {"equal": 0, "same": 0, "differ": 1, "different": 1, "cannot be said": 3}
_MOST: Final = 8
_MOST_LINES: Final = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare one run or two."""
    parser.add_argument(
        "a",
        metavar="A",
        nargs="?",
        type=Path,
        default=LOGS,
        help=f"a run, ours or another tool's (default: the newest in {LOGS})",
    )
    parser.add_argument(
        "b", metavar="B", nargs="?", type=Path, help="another; without it, the resumes of A are judged"
    )
    parser.add_argument(
        "--full", action="store_true", help="all differences, and the whole diffs of the code"
    )
    add_json_argument(parser)
    parser.epilog = (
        "Of a resume it compares the steps that exist twice, batches, saved and loaded state, learning rate, settings "
        "and code; the newest one counts for the exit code. Exit code: 0 if the runs are equal, to the last digit or "
        "within noise, or the resume continued the same training, or there is none; 1 if they differ; 3 if it cannot "
        "be said; 2 if a run cannot be read. docs/answers.md says how often the answer is right."
    )


def run(args: argparse.Namespace) -> int:
    """Print the answer."""
    listed = [run_at(path) for path in filter(None, (args.a, args.b))]
    say_if_cut(listed)
    runs = [read_evidence(source_for(found)) for found in listed]
    if len(runs) == 1:
        return _answer_resumes(runs[0], as_json=args.json)
    folders = {run.path.parent for run in runs}

    def siblings() -> list[RunCard]:
        return [found.card for found in list_runs([*folders]).runs] if len(folders) == 1 else []

    answer = why(runs[0], runs[1], siblings)
    if args.json:
        print_json(answer.as_json())
    else:
        _print(answer, full=args.full)
    return _CODES[answer.answer]


def _print(answer: Why, *, full: bool) -> None:
    styles = {"equal": "bold green", "differ": "bold yellow"}
    is_of_cause = answer.answer == "differ" and answer.causes and answer.causes[0].share >= LEAST
    about = "the cause " if is_of_cause else ""
    print(f"{painted(answer.answer, styles.get(answer.answer, 'bold'))}, {about}{answer.sure}")
    print(printable(answer.sentence))
    likely = [
        f"{one.share:.2f}  {one.difference.kind}: {one.difference.text}; {one.because}"
        for one in answer.causes
    ]
    blocks = {
        "Evidence": [f"{what}: {found}" for what, found in answer.evidence],
        "Could be the cause": likely,
        "Without effect": [f"{one.kind}: {one.text}; {because}" for one, because in answer.apart],
        **{f"Code: {change.path}": change.unified_diff.splitlines() for change in answer.code},
        "Not recorded": list(answer.needed),
    }
    for title, lines in blocks.items():
        most = len(lines) if full else _MOST_LINES if title.startswith("Code") else _MOST
        if lines:
            print(f"\n{painted(printable(title), 'bold')}")
        for line in lines[:most]:
            print(printable(f"  {line}"))
        if len(lines) > most:
            print(painted(f"  … and {len(lines) - most:,} more: --full shows all", "dim"))


# ------------------------------------------------------------ resumes


def _answer_resumes(found: RunEvidence, *, as_json: bool) -> int:
    """Print the answer about each resume of a run; the exit code is that of the newest."""
    if found.problem is not None and not found.sessions:
        return refuse(found.problem)
    answers = answer_resumes(found)
    if as_json:
        about = {"run": found.name, "path": str(found.path), "problem": found.problem}
        print_json({**about, "resumes": [answer.as_json() for answer in answers]})
    for answer in () if as_json else answers:
        _print_resume(answer)
    if not answers and not as_json:
        has_steps = any(session.steps for session in found.sessions)
        never = "was never resumed: it has one session with steps."
        print(
            printable(
                f"{found.name} {never if has_steps else 'has no step yet: there is no resume to judge.'}"
            )
        )
    return _CODES[answers[0].answer] if answers else 0


def _print_resume(answer: Judgement) -> None:
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
