"""Measure how often the answers about runs are right; write the figures of docs/figures/answers.md.

`make answers-eval`. Each answer has a module here with `run(quick) -> str`, which returns its part of the document.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.command import say
from benchmarks.figures import APPENDICES, END, put_between_marks

DOCUMENT: Final = APPENDICES / "answers.md"
MODULES: Final = {
    name: f"benchmarks.answers.{name}_eval"
    for name in ("resume", "why", "verdict")
    if importlib.util.find_spec(f"benchmarks.answers.{name}_eval") is not None
}
"""The answers that can be measured, in the order of the document."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them; a short run writes nothing."""
    parser = argparse.ArgumentParser(description="Measure how often the answers about runs are right.")
    parser.add_argument("--quick", action="store_true", help="a short run: no figures to quote, none written")
    parser.add_argument("--only", metavar="NAME", choices=sorted(MODULES), help="measure one answer alone")
    args = parser.parse_args(argv)
    found = {}
    for name in [args.only] if args.only else MODULES:
        say(f"how often `telemetry {name}` is right")
        found[name] = str(importlib.import_module(MODULES[name]).run(args.quick))
        print(found[name])
    if not args.quick:
        DOCUMENT.write_text(with_parts(DOCUMENT.read_text(encoding="utf-8"), found), encoding="utf-8")
        print(f"{DOCUMENT.name}: figures written", file=sys.stderr)
    return 0


def with_parts(document: str, parts: Mapping[str, str]) -> str:
    """Return `document` with each part in its place; a part that has none yet comes at the end."""
    for name, part in parts.items():
        begin = f"<!-- {name}: written by make answers-eval -->"
        if begin not in document:
            document = f"{document.rstrip()}\n\n{begin}\n\n{END}\n"
        document = put_between_marks(document, part.strip(), begin)
    return document


if __name__ == "__main__":
    sys.exit(main())
