"""Check what was measured before: the documents and constants show it, and on labelled curves nothing is worse.

`python -m benchmarks.kept [--corpus DIR]` prints each fault and exits 1, or 2 if there is no corpus.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import figures, guarantees
from benchmarks.child import ROOT
from benchmarks.diagnose_eval import reliability, tables
from benchmarks.diagnose_eval.corpus import CorpusError, Evaluator, splits_of
from benchmarks.diagnose_eval.ours import predictions
from benchmarks.diagnose_eval.scores import counts_of, worse
from benchmarks.figures import put_between_marks
from benchmarks.forecast_eval.__main__ import CONSTANTS, source_of
from toolkit.telemetry.diagnostics.confidence_table import STRENGTHS
from toolkit.telemetry.forecasts.constants import FITTED


def stale() -> Iterator[str]:
    """Yield the files that are not as their command writes them from the kept results."""
    detectors, confidence = (
        json.loads(path.read_text(encoding="utf-8")) for path in (tables.RESULT, reliability.RESULT)
    )
    parts = [
        *((path, text, figures.BEGIN) for path, text in figures.documents().items()),
        (tables.DOCUMENT, tables.document(detectors), tables.BEGIN),
        (tables.DOCUMENT, reliability.document(confidence), reliability.BEGIN),
    ]
    for path, text, begin in parts:
        document = path.read_text(encoding="utf-8")
        if put_between_marks(document, text, begin) != document:
            yield f"{path.relative_to(ROOT)} does not show the kept results: {begin}"
    if reliability.TABLE.read_text(encoding="utf-8") != reliability.source(confidence):
        yield f"{reliability.TABLE.relative_to(ROOT)} does not have the fitted numbers"
    # The last sentence has the day on which it was written.
    if CONSTANTS.read_text(encoding="utf-8").splitlines()[:-1] != source_of(FITTED).splitlines()[:-1]:
        yield f"{CONSTANTS.relative_to(ROOT)} is not as make forecast-eval writes it"
    counted = json.loads(guarantees.COUNTED.read_text(encoding="utf-8"))
    for path in guarantees.DOCUMENTS:
        document = path.read_text(encoding="utf-8")
        if guarantees.with_figures(document, counted) != document:
            yield f"{path.relative_to(ROOT)} does not show the figures of {guarantees.COUNTED.name}"
        yield from (
            f"{path.relative_to(ROOT)} has no figure for {test}"
            for test, _ in guarantees.proofs_in(document)
            if test not in counted
        )


def regressions(corpus: Path) -> Iterator[str]:
    """Yield what is worse on the labelled curves than the documents say."""
    kept = json.loads(tables.RESULT.read_text(encoding="utf-8"))["splits"]
    splits, evaluator = splits_of(corpus), Evaluator(corpus)
    compared = 0
    for split in splits:
        before = kept.get(split.name)
        if before is None or not set(split.left_out) <= set(before["left_out"]):
            continue
        # A run that was not there when the figures were made has none to compare with.
        split = split.without(before["left_out"])
        now = evaluator.score(split, {run: predictions(split.rows(run)) for run in split.labels})
        yield from worse(counts_of(now), before["ours"])
        compared += 1
    if not compared:
        raise CorpusError(f"the curves at {corpus} are not those of the document, or not all of them")
    confidence = reliability.measure(splits, evaluator)
    assert confidence is not None
    rows = [
        (said, row["right"], row["of"])
        for (said, *_), row in zip(STRENGTHS, confidence["strengths"], strict=True)
    ]
    for when in reliability.TIMES:
        held_out = confidence["reliability"][when]["held_out"]
        rows += [(row["said"], row["right"], row["of"]) for row in held_out]
    for said, right, of in rows:
        low, high = reliability.interval(right, of)
        if not low <= said <= high:
            yield f"findings that say they are right in {said:.2f} of cases are in {right} of {of}"


def main() -> int:
    """Print what is not as it was measured; exit 1 if anything is, and 2 if there is no corpus."""
    parser = argparse.ArgumentParser(description="Check the kept figures against documents and product.")
    parser.add_argument("--corpus", type=Path, help="labelled curves, to measure the detectors again")
    args = parser.parse_args()
    try:
        faults = list(stale() if args.corpus is None else regressions(args.corpus))
    except CorpusError as error:
        print(f"no labelled curves here: {error}", file=sys.stderr)
        return 2
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
