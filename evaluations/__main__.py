"""Measure how often an answer is right, and write docs/figures: `make evaluate QUESTION=NAME`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evaluations.curves import DEFAULT, CorpusError
from evaluations.figures import Options, write

QUESTIONS: Final = {
    "diagnosis": "What went wrong?",
    "confidence": "How sure is a finding?",
    "resume": "Did this resume continue the same training?",
    "why": "Why do these two runs differ?",
    "verdict": "Is it really better?",
    "forecasts": "Where does this loss end?",
    "sweep": "Which setting did it?",
    "ranks": "Which rank is it?",
    "agents": "What an assistant is answered",
}
"""The modules here, each with `PAGE`, the document about it, and `run(options) -> str`, the figures in Markdown."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the figures; exit 2 if there is nothing to measure on."""
    parser = argparse.ArgumentParser(description="Measure how often the answers of the product are right.")
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument(
        "--corpus", type=Path, default=DEFAULT, help="folder with evaluate.py and the labelled curves"
    )
    parser.add_argument("--quick", action="store_true", help="a short run: no figures to quote, none written")
    parser.add_argument(
        "--fit", action="store_true", help="also fit the constants of the product, and write them"
    )
    parser.add_argument("--list-errors", action="store_true", help="print what was answered wrongly")
    args = parser.parse_args(argv)
    module = importlib.import_module(f"evaluations.{args.question}")
    options = Options(corpus=args.corpus, quick=args.quick, fit=args.fit, list_errors=args.list_errors)
    try:
        found = str(module.run(options)).strip()
    except CorpusError as error:
        print(f"{args.question}: {error}", file=sys.stderr)
        return 2
    print(found)
    if not args.quick:
        write(args.question, QUESTIONS[args.question], module.PAGE, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
