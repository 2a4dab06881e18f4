"""Leave-repositories-out cross-validation of the thresholds and of the confidence of findings.

`python -m benchmarks.diagnose_eval.cross_validation --corpus DIR` prints the tables.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.diagnose_eval.corpus import DEFAULT, CorpusError, Evaluator, Prediction, Rows, splits_of
from benchmarks.diagnose_eval.other_thresholds import other_thresholds
from benchmarks.diagnose_eval.ours import predictions
from benchmarks.diagnose_eval.scores import INSTABILITY
from toolkit.diagnostics import thresholds

FOLDS = 10
SHUFFLES = 5

GRID: dict[str, tuple[str, tuple[float, ...]]] = {
    INSTABILITY: ("ENOUGH", (6.0, 8.0, 10.0)),
    "overfit": ("OVERFIT_EVIDENCE", (3.4, 4.4, 5.4)),
    "plateau": ("PLATEAU_FEWEST_RECORDS", (300, 500, 800)),
    "val_spike": ("VAL_RISE", (0.35, 0.5, 0.65)),
    "exploding_grad": ("NORM_RATIO_AT_ONCE", (20.0, 30.0)),
}
"""The threshold that decides most about a kind, and the values that each fold chooses from."""
OTHERS = ("nan", "divergence", "throughput_drop", "data_starvation", "low_gpu_util")
"""Kinds whose thresholds are not chosen: the folds show their spread only."""

Counts = tuple[int, int, int]
"""Events, found, false."""
_Of = Mapping[str, Mapping[str, Counts]]


def _add(counts: Iterable[Counts]) -> Counts:
    events = found = false = 0
    for one in counts:
        events, found, false = events + one[0], found + one[1], false + one[2]
    return events, found, false


def _f1(counts: Counts) -> float:
    events, found, false = counts
    return 2 * found / (events + found + false) if events + found + false else 1.0


def _examined(job: tuple[str, Rows, dict[str, float]]) -> tuple[str, list[Prediction]]:
    run, rows, values = job
    with other_thresholds(values):
        return run, predictions(rows)


def counts_by_run(corpus: Path, values: dict[str, float], processes: int = 2) -> dict[str, dict[str, Counts]]:
    """Return the counts of each kind on each run with these thresholds."""
    evaluator = Evaluator(corpus)
    counts: dict[str, dict[str, Counts]] = {}
    for split in splits_of(corpus):
        jobs = ((run, split.rows(run), values) for run in split.labels)
        with multiprocessing.Pool(processes, os.nice, (5,)) as pool:
            said = dict(pool.imap_unordered(_examined, jobs, chunksize=8))
        for run in split.labels:
            kinds = evaluator.score(split, said, [run])["kinds"]
            counts[run] = {kind: (of["labels"], of["hit"], of["fp"]) for kind, of in kinds.items()}
    return counts


def folds_of(repositories: Mapping[str, str], seed: int, folds: int = FOLDS) -> list[set[str]]:
    """Return the runs of each fold; no repository is in two."""
    names = sorted(set(repositories.values()))
    random.Random(seed).shuffle(names)
    return [
        {run for run, name in repositories.items() if name in names[first::folds]} for first in range(folds)
    ]


def validate(kind: str, by_value: Mapping[float, _Of], repositories: Mapping[str, str]) -> dict[str, Any]:
    """Choose the threshold without each fold and score it there, several times."""
    totals, chosen = [], []
    for seed in range(SHUFFLES):
        parts = []
        for held_out in folds_of(repositories, seed):
            score = {
                value: _f1(_add(of[run].get(kind, (0, 0, 0)) for run in of if run not in held_out))
                for value, of in by_value.items()
            }
            # The middle of equals: it is farthest from a value that is worse.
            best = [value for value in score if score[value] == max(score.values())]
            value = sorted(best)[len(best) // 2]
            chosen.append(value)
            parts.append(_add(by_value[value][run].get(kind, (0, 0, 0)) for run in held_out))
        totals.append(_add(parts))
    return {"totals": totals, "chosen": chosen}


def worst_repository(kind: str, of: _Of, repositories: Mapping[str, str]) -> tuple[str, float]:
    """Return the repository without which recall changes most, and by how much."""
    events, found, _ = _add(one.get(kind, (0, 0, 0)) for one in of.values())
    change, name = 0.0, "-"
    for repository in sorted(set(repositories.values())):
        rest = _add(one.get(kind, (0, 0, 0)) for run, one in of.items() if repositories[run] != repository)
        if rest[0] and events and abs(rest[1] / rest[0] - found / events) > abs(change):
            change, name = rest[1] / rest[0] - found / events, repository
    return name, change


def _shown(values: Sequence[float]) -> str:
    middle = statistics.mean(values)
    return f"{middle:.2f} ({min(values):.2f} to {max(values):.2f})"


def table(corpus: Path) -> str:
    """Return the cross-validated figures as a table in Markdown."""
    repositories: dict[str, str] = {}
    for split in splits_of(corpus):
        repositories.update({run: split.repositories.get(run, run) for run in split.labels})
    now = counts_by_run(corpus, {})
    lines = [
        "| kind | threshold, values chosen | found of events, false | precision | recall | most by one repository |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for kind in (*GRID, *OTHERS):
        by_value: dict[float, _Of] = {0.0: now}
        name = "-"
        if kind in GRID:
            name, values = GRID[kind]
            usual = getattr(thresholds, name)
            by_value = {
                value: now if value == usual else counts_by_run(corpus, {name: value}) for value in values
            }
        result = validate(kind, by_value, repositories)
        totals: list[Counts] = result["totals"]
        events, found, false = totals[0]
        if not events:
            continue
        often = {value: result["chosen"].count(value) for value in sorted(set(result["chosen"]))}
        chosen = ", ".join(f"{value:g} ({times})" for value, times in often.items())
        repository, change = worst_repository(kind, now, repositories)
        lines.append(
            f"| `{kind}` | {f'`{name}`: {chosen}' if name != '-' else '-'} | {found} of {events}, {false} "
            f"| {_shown([one[1] / max(1, one[1] + one[2]) for one in totals])} "
            f"| {_shown([one[1] / one[0] for one in totals])} | {change:+.2f} ({repository}) |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; exit 2 if there is no corpus."""
    parser = argparse.ArgumentParser(description="Cross-validate the detectors over repositories.")
    parser.add_argument("--corpus", type=Path, default=DEFAULT, help="folder with evaluate.py and the curves")
    args = parser.parse_args(argv)
    try:
        print(table(args.corpus))
    except CorpusError as error:
        print(f"cross-validation: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
