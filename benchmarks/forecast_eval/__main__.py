"""Measure how often forecasts are right; write docs/figures/forecasts.md.

`make forecast-eval`. `--fit` also writes the constants that were fitted on all open curves into the toolkit.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.child import ROOT
from benchmarks.command import say
from benchmarks.diagnose_eval.corpus import DEFAULT, CorpusError
from benchmarks.figures import APPENDICES, END, put_between_marks
from benchmarks.forecast_eval import losses
from toolkit.telemetry.forecasts.series import Fitted

DOCUMENT: Final = APPENDICES / "forecasts.md"
CONSTANTS: Final = ROOT / "toolkit" / "telemetry" / "forecasts" / "constants.py"
OTHERS: Final = ("stopping",)
"""Other parts of the document: modules here with `run() -> str`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them."""
    parser = argparse.ArgumentParser(description="Measure how often forecasts are right.")
    parser.add_argument("--corpus", type=Path, default=DEFAULT, help="the folder of open curves")
    parser.add_argument("--fit", action="store_true", help="write the constants fitted on all open curves")
    parser.add_argument("--only", choices=("losses", *OTHERS), help="measure one part alone")
    args = parser.parse_args(argv)
    parts = {}
    if args.only in (None, "losses"):
        say("how often the forecast of a final loss is right")
        try:
            parts["losses"], fitted = losses.run(args.corpus)
        except CorpusError as error:
            print(error, file=sys.stderr)
            return 2
        if args.fit:
            CONSTANTS.write_text(source_of(fitted), encoding="utf-8")
    for name in OTHERS:
        module = f"benchmarks.forecast_eval.{name}"
        if args.only in (None, name) and importlib.util.find_spec(module) is not None:
            parts[name] = str(importlib.import_module(module).run())
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, part in parts.items():
        print(part)
        begin = f"<!-- {name}: written by make forecast-eval -->"
        if begin not in text:
            text = f"{text.rstrip()}\n\n{begin}\n\n{END}\n"
        text = put_between_marks(text, part.strip(), begin)
    DOCUMENT.write_text(text, encoding="utf-8")
    return 0


def source_of(fitted: Fitted) -> str:
    """Return constants.py with these constants."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    lines = [
        '"""What was fitted on open training curves; `make forecast-eval ARGS=--fit` writes this file."""',
        "",
        "from typing import Final",
        "",
        "from toolkit.telemetry.forecasts.series import Fitted",
        "",
        "FITTED: Final = Fitted(",
        f"    done={fitted.done},",
        *_rows("places", fitted.places),
        f"    difficulty={fitted.difficulty},",
        f"    hardest={fitted.hardest},",
        f"    levels={fitted.levels},",
        *_rows("known", fitted.known),
        *_rows("unknown", fitted.unknown),
        f"    held_out={fitted.held_out},",
        ")",
        f'"""Fitted on {day}; docs/figures/forecasts.md says on which curves and how often it is right."""',
        "",
    ]
    return "\n".join(lines)


def _rows(name: str, rows: Sequence[tuple[float, ...]]) -> list[str]:
    return [f"    {name}=(", *(f"        {row}," for row in rows), "    ),"]


if __name__ == "__main__":
    sys.exit(main())
