"""Cross-validation of the thresholds over repositories: no repository is both chosen on and scored.

`python -m benchmarks.diagnose_eval.cross_validation --corpus DIR` prints the tables alone.
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

from benchmarks.command import say
from benchmarks.diagnose_eval.corpus import (
    DEFAULT,
    CorpusError,
    Evaluator,
    Prediction,
    Rows,
    Split,
    splits_of,
)
from benchmarks.diagnose_eval.markdown import table
from benchmarks.diagnose_eval.other_thresholds import other_thresholds
from benchmarks.diagnose_eval.ours import predictions
from benchmarks.diagnose_eval.scores import INSTABILITY
from toolkit.telemetry.diagnostics import thresholds

FOLDS = 10
SHUFFLES = 5
DRAWS = 2000
MOVES = 0.05
"""A repository without which precision or recall moves by more than this is named."""

GRID: dict[str, tuple[str, tuple[float, ...]]] = {
    INSTABILITY: ("ENOUGH", (6.0, 7.0, 10.0, 12.0)),
    "divergence": ("LASTING_SHARE", (0.05, 0.075, 0.15, 0.2)),
    "overfit": ("OVERFIT_EVIDENCE", (3.4, 3.9, 4.9, 5.4)),
    "plateau": ("PLATEAU_FEWEST_RECORDS", (150, 200, 300, 500)),
    "val_spike": ("VAL_RISE", (0.35, 0.42, 0.58, 0.65)),
    "exploding_grad": ("NORM_RATIO", (6.0, 8.0, 13.0, 16.0)),
    "throughput_drop": ("SPEED_DROP", (0.65, 0.7, 0.78, 0.8)),
    "data_starvation": ("DATA_SHARE", (0.22, 0.26, 0.35, 0.4)),
    "low_gpu_util": ("GPU_BUSY_PCT", (40.0, 45.0, 55.0, 58.0)),
}
"""The threshold that decides most about a kind, and the values that a fold chooses from besides the present one.

The n-th values of all kinds are tried in one pass over the curves: a kind hardly depends on the thresholds of another.
"""
KINDS = ("nan", *GRID)

Counts = tuple[int, ...]
"""Events, found, false; runs with an event, runs found, runs with only false ones."""
_NONE: Counts = (0, 0, 0, 0, 0, 0)
_NAMES = ("labels", "hit", "fp", "runs", "run_tp", "run_fp")
_Of = Mapping[str, Mapping[str, Counts]]


def _add(counts: Iterable[Counts]) -> Counts:
    total = list(_NONE)
    for one in counts:
        total = [so_far + number for so_far, number in zip(total, one, strict=True)]
    return tuple(total)


def _f1(counts: Counts) -> float:
    events, found, false = counts[:3]
    return 2 * found / (events + found + false) if events + found + false else 1.0


def _precision(counts: Counts) -> float | None:
    return counts[1] / (counts[1] + counts[2]) if counts[1] + counts[2] else None


def _recall(counts: Counts) -> float | None:
    return counts[1] / counts[0] if counts[0] else None


def _examined(job: tuple[str, Rows, dict[str, float]]) -> tuple[str, list[Prediction]]:
    run, rows, values = job
    with other_thresholds(values):
        return run, predictions(rows)


def counts_by_run(
    splits: Sequence[Split], evaluator: Evaluator, values: dict[str, float], processes: int = 2
) -> dict[str, dict[str, Counts]]:
    """Return the counts of each kind on each run with these thresholds."""
    counts: dict[str, dict[str, Counts]] = {}
    for split in splits:
        jobs = ((run, split.rows(run), values) for run in split.labels)
        with multiprocessing.Pool(processes, os.nice, (5,)) as pool:
            said = dict(pool.imap_unordered(_examined, jobs, chunksize=8))
        for run in split.labels:
            kinds = evaluator.score(split, said, [run])["kinds"]
            counts[run] = {kind: tuple(of[name] for name in _NAMES) for kind, of in kinds.items()}
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
    totals: list[Counts] = []
    folds: list[Counts] = []
    chosen: list[float] = []
    for seed in range(SHUFFLES):
        parts = []
        for held_out in folds_of(repositories, seed):
            score = {
                value: _f1(_add(of[run].get(kind, _NONE) for run in of if run not in held_out))
                for value, of in by_value.items()
            }
            # The middle of equals: it is farthest from a value that is worse.
            best = sorted(value for value in score if score[value] == max(score.values()))
            value = best[len(best) // 2]
            chosen.append(value)
            parts.append(_add(by_value[value][run].get(kind, _NONE) for run in held_out))
        totals.append(_add(parts))
        folds += parts
    return {"totals": totals, "folds": folds, "chosen": chosen}


def repositories_that_move(
    kind: str, of: _Of, repositories: Mapping[str, str]
) -> list[tuple[str, float, float]]:
    """Return the repositories without which precision or recall changes by more than `MOVES`, and both changes."""
    parts = _by_repository(kind, of, repositories)
    whole = _add(parts.values())
    moving = []
    for repository, part in parts.items():
        rest = tuple(all_ - own for all_, own in zip(whole, part, strict=True))
        changes = []
        for ratio in (_precision, _recall):
            with_it, without = ratio(whole), ratio(rest)
            # Without the only events of a kind there is nothing left to measure.
            changes.append(0.0 if with_it is None else (without or 0.0) - with_it)
        if max(abs(change) for change in changes) > MOVES:
            moving.append((repository, changes[0], changes[1]))
    return sorted(moving, key=lambda one: -max(abs(one[1]), abs(one[2])))


def interval_of(kind: str, of: _Of, repositories: Mapping[str, str]) -> dict[str, list[float]]:
    """Return where precision and recall are in nine of ten draws of as many repositories, with replacement."""
    parts = list(_by_repository(kind, of, repositories).values())
    dice = random.Random(kind)
    drawn = [_add(dice.choices(parts, k=len(parts))) for _ in range(DRAWS)] if parts else []
    found = {}
    for name, ratio in (("precision", _precision), ("recall", _recall)):
        values = sorted(value for one in drawn if (value := ratio(one)) is not None)
        if values:
            found[name] = [round(values[int(share * (len(values) - 1))], 3) for share in (0.05, 0.95)]
    return found


def _by_repository(kind: str, of: _Of, repositories: Mapping[str, str]) -> dict[str, Counts]:
    """Return the counts of each repository that has an event or an alarm of the kind."""
    parts: dict[str, Counts] = {}
    for run, one in of.items():
        counts = one.get(kind, _NONE)
        if any(counts):
            parts[repositories[run]] = _add((parts.get(repositories[run], _NONE), counts))
    return parts


def measure(splits: Sequence[Split], evaluator: Evaluator) -> dict[str, Any]:
    """Return the cross-validated counts of each kind, the values chosen and the repositories that matter most."""
    repositories: dict[str, str] = {}
    for split in splits:
        repositories.update({run: split.repositories.get(run, run) for run in split.labels})
    passes = []
    for place in range(-1, len(next(iter(GRID.values()))[1])):
        say(f"cross-validation: pass {place + 2} of 5")
        values = {} if place < 0 else {name: of[place] for name, of in GRID.values()}
        passes.append(counts_by_run(splits, evaluator, values))
    kinds = {}
    for kind in KINDS:
        by_value: dict[float, _Of] = {0.0: passes[0]}
        if kind in GRID:
            name, others = GRID[kind]
            by_value = dict(zip((getattr(thresholds, name), *others), passes, strict=True))
        result = validate(kind, by_value, repositories)
        if not result["totals"][0][0]:
            continue
        chosen = result.pop("chosen")
        kinds[kind] = {
            "threshold": GRID[kind][0] if kind in GRID else None,
            "chosen": {f"{value:g}": chosen.count(value) for value in sorted(set(chosen))},
            **result,
            "now": _add(of.get(kind, _NONE) for of in passes[0].values()),
            "interval": interval_of(kind, passes[0], repositories),
            "repositories": len(_by_repository(kind, passes[0], repositories)),
            "hangs_on": repositories_that_move(kind, passes[0], repositories),
        }
    return {"runs": len(repositories), "repositories": len(set(repositories.values())), "kinds": kinds}


# ---------------------------------------------------------------- the section of the document


def section(found: Mapping[str, Any]) -> list[str]:
    """Return the cross-validated figures as text and tables in Markdown."""
    rows, moved = [], []
    for kind, of in found["kinds"].items():
        totals = [tuple(one) for one in of["totals"]]
        chosen = ", ".join(f"{value} ({times})" for value, times in of["chosen"].items())
        rows.append(
            [
                f"`{kind}`",
                f"`{of['threshold']}`: {chosen}" if of["threshold"] else "-",
                _all_of(f"{one[1]} of {one[0]}, {one[2]}" for one in totals),
                *(
                    f"{_mean(totals, name)} ({_range(of['interval'].get(name))})"
                    for name in ("precision", "recall")
                ),
                *(_of_folds(of["folds"], ratio) for ratio in (_precision, _recall)),
                " / ".join(_mean([one[3:] for one in totals], name) for name in ("precision", "recall")),
            ]
        )
        moved.append([f"`{kind}`", str(of["repositories"]), _named(of["hangs_on"])])
    return [
        "### Cross-validated over repositories",
        "\n".join(
            [
                (
                    f"The {found['repositories']} repositories of all {found['runs']} runs are divided into "
                    f"{FOLDS} folds, {SHUFFLES} times."
                ),
                (
                    "For each fold, the main threshold of a kind is chosen on the other folds, from the present value "
                    "and four others, and scored on this one; no repository is in both."
                ),
                (
                    "Counts are those of a division, several where divisions differ; ratios are means over the "
                    "divisions, with the range of nine of ten draws of repositories with replacement; the lowest and "
                    "highest fold are of those with an event or an alarm."
                ),
                (
                    "**The rules themselves were written with these curves in sight**, so this validates the choice of "
                    "one threshold only: what to expect on unseen runs is `dev2` "
                    "[before any change](../detectors.md#how-often-it-is-right)."
                ),
            ]
        ),
        table(
            [
                "kind",
                f"threshold: value chosen (of {FOLDS * SHUFFLES} folds)",
                "found of events, false",
                "precision",
                "recall",
                "precision, folds",
                "recall, folds",
                "runs, precision / recall",
            ],
            rows,
        ),
        (
            f"Repositories without which precision or recall of a kind moves by more than {MOVES}; "
            "with these few events, a kind hangs on them:"
        ),
        table(["kind", "repositories with an event or an alarm", "without it: precision, recall"], moved),
    ]


def mean_of(totals: Iterable[Counts], name: str) -> float | None:
    """Return the mean precision or recall of several divisions."""
    ratio = _precision if name == "precision" else _recall
    values = [value for one in totals if (value := ratio(one)) is not None]
    return statistics.mean(values) if values else None


def _mean(totals: Iterable[Counts], name: str) -> str:
    value = mean_of(totals, name)
    return "-" if value is None else f"{value:.2f}"


def _range(interval: Sequence[float] | None) -> str:
    return "-" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"


def _of_folds(folds: Iterable[Counts], ratio: Any) -> str:
    values = [value for one in folds if (value := ratio(tuple(one))) is not None]
    return f"{min(values):.2f} to {max(values):.2f}" if values else "-"


def _all_of(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _named(moving: Iterable[Sequence[Any]]) -> str:
    return "; ".join(f"{name}: {first:+.2f}, {second:+.2f}" for name, first, second in moving) or "none"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; exit 2 if there is no corpus."""
    parser = argparse.ArgumentParser(description="Cross-validate the detectors over repositories.")
    parser.add_argument("--corpus", type=Path, default=DEFAULT, help="folder with evaluate.py and the curves")
    args = parser.parse_args(argv)
    try:
        found = measure(splits_of(args.corpus), Evaluator(args.corpus))
    except CorpusError as error:
        print(f"cross-validation: {error}", file=sys.stderr)
        return 2
    print("\n\n".join(section(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
