"""`telemetry why`: why two runs differ: where they depart, and which difference could have caused it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from toolkit.telemetry.answers.evidence import read_evidence
from toolkit.telemetry.answers.why import Why, why
from toolkit.telemetry.cli.chosen_run import printable, refuse
from toolkit.telemetry.cli.run_list import run_at
from toolkit.telemetry.cli.terminal import add_json_argument, painted, print_json

JSON_FORM: Final = """\
an object with `runs` (two names), `answer` (`equal`, `differ` or `cannot be said`), `sentence`, `sure`, `step` (the \
first that differs, as the first run counts, or `null`), `departure` (`how`: `bits`, `jump`, `level` or `null`; \
`metric`; `records` that both have), `causes` (likely first: `kind`, `what`, `a`, `b`, `note`, `because`, `share`), \
`without_effect` (the same without `share`), `code` (`path` and `diff` of each file), `evidence` (`what`, `found`) and \
`needed` (what was not recorded)."""

_CODES: Final = {"equal": 0, "differ": 1, "cannot be said": 3}
_MOST: Final = 8
_MOST_LINES: Final = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two runs."""
    for name in ("a", "b"):
        parser.add_argument(name, metavar=name.upper(), type=Path, help="a run, ours or another tool's")
    parser.add_argument(
        "--full", action="store_true", help="all differences, and the whole diffs of the code"
    )
    add_json_argument(parser)
    parser.epilog = (
        "Exit code: 0 if they are equal, to the last digit or within noise; 1 if they differ; 3 if it cannot be said; "
        "2 if one of them cannot be read. docs/answers.md says how often the answer is right."
    )


def run(args: argparse.Namespace) -> int:
    """Print the answer."""
    runs = []
    for path in (args.a, args.b):
        found = run_at(path)
        if isinstance(found, str):
            return refuse(found)
        runs.append(read_evidence(found.source if found.source is not None else found.path))
    answer = why(runs[0], runs[1])
    if args.json:
        print_json(answer.as_json())
    else:
        _print(answer, full=args.full)
    return _CODES[answer.answer]


def _print(answer: Why, *, full: bool) -> None:
    styles = {"equal": "bold green", "differ": "bold yellow"}
    print(f"{painted(answer.answer, styles.get(answer.answer, 'bold'))}, {answer.sure}")
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
