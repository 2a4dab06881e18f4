"""Thresholds chosen on the made curves alone, scored on the open curves; and which number predicted the closed ones.

`python -m benchmarks.diagnose_eval.frozen --corpus DIR` prints the tables alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import say
from benchmarks.diagnose_eval.corpus import DEFAULT, CorpusError, Evaluator, Split, splits_of
from benchmarks.diagnose_eval.cross_validation import GRID, KINDS, counts_by_run, interval_of
from benchmarks.diagnose_eval.made import made_split, said_of
from benchmarks.diagnose_eval.markdown import table
from benchmarks.diagnose_eval.scores import counts_of
from benchmarks.made_curves.file import MadeFileError, made_runs
from toolkit.telemetry.diagnostics import thresholds

OF_RUNS = ("overfit", "plateau")
"""Kinds that are counted in runs instead of events, as in the goals."""
_NONE = {"labels": 0, "found": 0, "false": 0, "runs": 0, "runs_found": 0, "runs_false": 0}


def choose(by_value: Mapping[float, Mapping[str, int]]) -> float:
    """Return the value with the best F1; of equals the middle one, which is farthest from a worse one."""
    score = {value: _f1(of) for value, of in by_value.items()}
    best = sorted(value for value in score if score[value] == max(score.values()))
    return best[len(best) // 2]


def _f1(of: Mapping[str, int]) -> float:
    there = of["labels"] + of["found"] + of["false"]
    return 2 * of["found"] / there if there else 0.0


def measure(splits: Sequence[Split], evaluator: Evaluator) -> dict[str, Any]:
    """Return the value of each threshold that the made curves choose, and the counts on the open curves with them."""
    passes = []
    with made_split(made_runs()) as made:
        for place in range(-1, len(next(iter(GRID.values()))[1])):
            say(f"thresholds from the made curves: pass {place + 2} of 5")
            values = {} if place < 0 else {name: of[place] for name, of in GRID.values()}
            passes.append(counts_of(evaluator.score(made, said_of(made, values)))["kinds"])
    chosen = {}
    on_made = {}
    for kind, (name, others) in GRID.items():
        candidates = dict(zip((getattr(thresholds, name), *others), passes, strict=True))
        by_value = {value: of.get(kind, _NONE) for value, of in candidates.items()}
        # Without events there is nothing to choose by: what is in use stays.
        if any(of["labels"] for of in by_value.values()):
            chosen[name] = choose(by_value)
            on_made[kind] = dict(by_value[chosen[name]])
    say("thresholds from the made curves: on the open curves")
    of_run = counts_by_run(splits, evaluator, chosen)
    repositories = {run: split.repositories.get(run, run) for split in splits for run in split.labels}
    kinds = {}
    for kind in KINDS:
        parts = [one[kind] for one in of_run.values() if kind in one]
        total = [sum(numbers) for numbers in zip(*parts, strict=True)] if parts else []
        if total and total[0]:
            kinds[kind] = {
                "threshold": GRID[kind][0] if kind in GRID else None,
                "chosen": chosen.get(GRID[kind][0]) if kind in GRID else None,
                "in_use": getattr(thresholds, GRID[kind][0]) if kind in GRID else None,
                "made": on_made.get(kind),
                "open": total,
                "interval": interval_of(kind, of_run, repositories),
            }
    return {"repositories": len(set(repositories.values())), "runs": len(of_run), "kinds": kinds}


# ---------------------------------------------------------------- the section of the document


def section(found: Mapping[str, Any]) -> list[str]:
    """Return the figures as text and tables in Markdown."""
    return [
        "### With thresholds from the made curves",
        "\n".join(
            [
                (
                    "The main threshold of each kind is chosen on the made curves alone, from the five values of "
                    f"the cross-validation, and scored on all {found['runs']} open curves: no open curve has a part "
                    "in the choice."
                ),
                (
                    "The ranges are those of nine of ten draws of the "
                    f"{found['repositories']} repositories with replacement. "
                    "Kinds without a made event keep their threshold."
                ),
                "The rules themselves were written with the open curves in sight, and no threshold undoes that.",
            ]
        ),
        table(
            [
                "kind",
                "threshold: in use, chosen",
                "made curves: found of events, false",
                "open curves: found of events, false",
                "precision",
                "recall",
            ],
            [_row(kind, of) for kind, of in found["kinds"].items()],
        ),
        *_predictions(),
    ]


def _row(kind: str, of: Mapping[str, Any]) -> list[str]:
    first = 3 if kind in OF_RUNS else 0
    events, hit, false = of["open"][first : first + 3]
    made = of["made"]
    return [
        f"`{kind}`" + (", runs" if first else ""),
        f"`{of['threshold']}`: {of['in_use']:g}, {of['chosen']:g}" if of["chosen"] is not None else "-",
        _of_made(made, "runs_" if first else "") if made else "no event" if of["threshold"] else "-",
        f"{hit} of {events}, {false}",
        _with_range(hit, hit + false, None if first else of["interval"].get("precision")),
        _with_range(hit, events, None if first else of["interval"].get("recall")),
    ]


def _of_made(of: Mapping[str, int], prefix: str) -> str:
    return f"{of[prefix + 'found']} of {of['runs' if prefix else 'labels']}, {of[prefix + 'false']}"


def _with_range(part: int, whole: int, interval: Sequence[float] | None) -> str:
    if not whole:
        return "-"
    text = f"{part / whole:.2f}"
    return f"{text} ({interval[0]:.2f} to {interval[1]:.2f})" if interval else text


_CLOSED = "closed curves"
AT_CLOSED: dict[str, dict[str, float | None]] = {
    "instability": {_CLOSED: 33 / 39, "cross": 53 / 55, "dev2": 22 / 26, "frozen": 51 / 55, "made": 83 / 94},
    "divergence": {_CLOSED: 5 / 8, "cross": 15 / 15, "dev2": 6 / 6, "frozen": 15 / 15, "made": 26 / 26},
    "overfit": {_CLOSED: 0.91, "cross": 19 / 22, "dev2": 8 / 10, "frozen": 19 / 22, "made": 30 / 30},
    "plateau": {_CLOSED: 0.46, "cross": 11 / 17, "dev2": 5 / 9, "frozen": 13 / 17, "made": 14 / 50},
    "exploding_grad": {_CLOSED: 12 / 13, "cross": 3 / 3, "dev2": None, "frozen": 3 / 3, "made": 49 / 50},
    "val_spike": {_CLOSED: 2 / 3, "cross": 7 / 9, "dev2": 2 / 3, "frozen": 7 / 9, "made": 7 / 13},
    "throughput_drop": {_CLOSED: 2 / 4, "cross": 1 / 1, "dev2": None, "frozen": 1 / 1, "made": 22 / 25},
}
"""Recall of the detectors of 96b6dad, which were scored on the closed curves once; `dev2` before they had seen it."""
_TITLES = {
    _CLOSED: _CLOSED,
    "cross": "open curves, cross-validated",
    "dev2": "`dev2`, unseen",
    "frozen": "open curves, thresholds from the made ones",
    "made": "made curves",
}


def distances(names: Sequence[str], kinds: Sequence[str]) -> dict[str, float]:
    """Return how far each of these numbers was from the recall on the closed curves, in the mean over `kinds`."""
    found = {}
    for name in names:
        apart = [abs((AT_CLOSED[kind][name] or 0.0) - (AT_CLOSED[kind][_CLOSED] or 0.0)) for kind in kinds]
        found[name] = statistics.mean(apart)
    return found


def _predictions() -> list[str]:
    """Return the numbers of the detectors that the closed curves were scored with, next to that score."""
    others = [name for name in _TITLES if name != _CLOSED]
    rows = []
    for kind, of in AT_CLOSED.items():
        ratios = ("-" if value is None else f"{value:.2f}" for value in (of[name] for name in _TITLES))
        rows.append([f"`{kind}`" + (", runs" if kind in OF_RUNS else ""), *ratios])
    unseen = [kind for kind, of in AT_CLOSED.items() if of["dev2"] is not None]
    for title, kinds in (
        ("mean distance, all", list(AT_CLOSED)),
        ("mean distance, the five of `dev2`", unseen),
    ):
        apart = distances([name for name in others if name != "dev2" or kinds is unseen], kinds)
        rows.append([title, "", *(f"{apart[name]:.2f}" if name in apart else "-" for name in others)])
    return [
        (
            "Recall of the detectors of 96b6dad, which were scored on the closed curves, and the numbers that could "
            "have predicted it:"
        ),
        table(["kind", *_TITLES.values()], rows),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; exit 2 if there is no corpus or there are no made curves."""
    parser = argparse.ArgumentParser(description="Score thresholds of the made curves on the open ones.")
    parser.add_argument("--corpus", type=Path, default=DEFAULT, help="folder with evaluate.py and the curves")
    args = parser.parse_args(argv)
    try:
        found = measure(splits_of(args.corpus), Evaluator(args.corpus))
    except (CorpusError, MadeFileError) as error:
        print(f"frozen thresholds: {error}", file=sys.stderr)
        return 2
    print("\n\n".join(section(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
