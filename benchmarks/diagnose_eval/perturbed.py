"""The labelled curves in other units, logged at other intervals or with less: which findings stay the same.

`python -m benchmarks.diagnose_eval.perturbed --corpus DIR` prints the tables alone.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.diagnose_eval.corpus import DEFAULT, Evaluator, Prediction, Rows, Split, splits_of
from benchmarks.diagnose_eval.markdown import table
from benchmarks.diagnose_eval.ours import as_predictions, findings_of
from benchmarks.diagnose_eval.scores import FAMILIES, INSTABILITY
from toolkit.telemetry.diagnostics.finding import INFO
from toolkit.telemetry.diagnostics.robust import CHANGE_TO_SIGMA

JOBS = 2
MOST_ROWS = 6_000
"""Longer runs are left out: nine of 264, which would take more than half of the time."""
FEWEST_ROWS = 30
"""A curve with fewer records after every n-th was taken has too little to judge."""
SAMPLES_A_STEP = 256
EPOCHS = 40

_LOSSES = ("train_loss", "val_loss", "train_eval_loss", "d_loss")
_SCALED = (*_LOSSES, "grad_norm", "tokens_per_sec", "iters_per_sec", "iters_per_sec_avg")
_AVERAGED = ("train_loss", "d_loss", "grad_norm", "step_time_s", "tokens_per_sec", "iters_per_sec")
_MISSING = ("train_loss", "val_loss", "grad_norm", "lr", "epoch", "elapsed_s", "step_time_s")
_ROWS = (INSTABILITY, *(kind for kind in FAMILIES if kind not in ("spike", "divergence", INSTABILITY)))
_INPUT = {
    "overfit": ("val_loss",),
    "val_spike": ("val_loss",),
    "exploding_grad": ("grad_norm",),
    "throughput_drop": ("step_time_s", "tokens_per_sec", "iters_per_sec", "iters_per_sec_avg", "elapsed_s"),
    "data_starvation": ("data_time_s",),
    "low_gpu_util": ("gpu_util_pct",),
    "nan": _SCALED,
}
"""Fields that a kind is found in; the training loss for the others."""
_EVENT_FIELDS = frozenset({"event", "global_step"})


def _scaled(rows: Rows, factor: float) -> Rows:
    return [
        {
            name: value * factor if name in _SCALED and _is_number(value) else value
            for name, value in row.items()
        }
        for row in rows
    ]


def _raised(rows: Rows) -> Rows:
    """Add a tenth of the usual loss, as a penalty on the weights does."""
    usual = {name: _median_of(rows, name) for name in _LOSSES}
    return [
        {name: value + 0.1 * abs(usual[name]) if name in usual else value for name, value in row.items()}
        for row in rows
    ]


def _noisier(rows: Rows) -> Rows:
    """Add half of the noise that each loss and gradient norm has around its trend."""
    dice = random.Random(7)
    sigma = {name: 0.5 * _noise_of(rows, name) for name in (*_LOSSES, "grad_norm")}
    lowest = {name: min((value for value in _values(rows, name)), default=0.0) for name in sigma}
    noisy = []
    for row in rows:
        changed = dict(row)
        for name in filter(row.__contains__, sigma):
            value = row[name] + sigma[name] * dice.gauss(0.0, 1.0)
            # A loss that is never negative does not become so.
            changed[name] = max(value, 0.5 * lowest[name]) if lowest[name] > 0.0 else value
        noisy.append(changed)
    return noisy


def _every(rows: Rows, stride: int, *, dense: int = 0) -> Rows:
    """Keep each `stride`-th step record after the first `dense`, and every evaluation."""
    kept, steps = [], 0
    for row in rows:
        is_step = row.get("event", "step") != "eval"
        if not is_step or steps < dense or steps % stride == 0:
            kept.append(row)
        steps += is_step
    return kept


def _means(rows: Rows, count: int) -> Rows:
    """Log every `count` records the mean of each averaged value since the last one."""
    kept, sums, numbers, steps = [], Counter[str](), Counter[str](), 0
    for row in rows:
        if row.get("event", "step") == "eval":
            kept.append(row)
            continue
        steps += 1
        for name in _AVERAGED:
            if _is_number(row.get(name)):
                sums[name] += row[name]
                numbers[name] += 1
        if steps % count == 0:
            kept.append({**row, **{name: sums[name] / numbers[name] for name in sums}})
            sums, numbers = Counter(), Counter()
    return kept


def _running(rows: Rows, count: int) -> Rows:
    """Log the mean of the last `count` values in place of each, as progress bars do."""
    last: dict[str, deque[float]] = {name: deque(maxlen=count) for name in _AVERAGED}
    smooth = []
    for row in rows:
        changed = dict(row)
        for name in _AVERAGED:
            if _is_number(row.get(name)):
                last[name].append(row[name])
                changed[name] = sum(last[name]) / len(last[name])
        smooth.append(changed)
    return smooth


def _rounded(rows: Rows) -> Rows:
    return [
        {
            name: float(f"{value:.3g}") if type(value) is float and name not in _EVENT_FIELDS else value
            for name, value in row.items()
        }
        for row in rows
    ]


def _without(rows: Rows, missing: str) -> Rows:
    return [{name: value for name, value in row.items() if name != missing} for row in rows]


def _with_steps(rows: Rows, step_of: Callable[[float], float]) -> Rows:
    return [{**row, "global_step": step_of(row["global_step"])} for row in rows]


def _in_epochs(rows: Rows) -> Rows:
    """Count steps in epochs with a fraction, as a log that has no other step does."""
    whole = max(1.0, max(row["global_step"] for row in rows) / EPOCHS)
    return _with_steps(rows, lambda step: step / whole)


CHANGES: dict[str, Callable[[Rows], Rows]] = {
    "losses, norms and rates times 1000": partial(_scaled, factor=1e3),
    "losses, norms and rates divided by 1000": partial(_scaled, factor=1e-3),
    "losses + 10 % of their median": _raised,
    "half of its own noise added": _noisier,
    "every 2nd record": partial(_every, stride=2),
    "every 5th record": partial(_every, stride=5),
    "every 10th record": partial(_every, stride=10),
    "100 records, then every 5th": partial(_every, stride=5, dense=100),
    "means of 5 records": partial(_means, count=5),
    "running mean of 10": partial(_running, count=10),
    "running mean of 50": partial(_running, count=50),
    "rounded to 3 digits": _rounded,
    **{f"without `{name}`": partial(_without, missing=name) for name in _MISSING},
    "steps counted in samples": partial(_with_steps, step_of=lambda step: step * SAMPLES_A_STEP),
    "steps counted in epochs": _in_epochs,
}
_THINNED = frozenset(name for name in CHANGES if "every" in name or name.startswith("means"))


def measure(splits: Sequence[Split], evaluator: Evaluator) -> dict[str, Any]:
    """Return, for each change, how many findings survive it, labels found and false alarms on clean runs."""
    began = _processor_s()
    found: dict[str, dict[str, Any]] = {name: {"kinds": {}, "clean": 0, "alarms": {}} for name in CHANGES}
    runs = left_out = 0
    with ProcessPoolExecutor(JOBS) as pool:
        for split in splits:
            jobs = {run: pool.submit(_findings, split.rows(run), _labels(split, run)) for run in split.labels}
            for run, job in jobs.items():
                changed = job.result()
                runs, left_out = (runs + 1, left_out) if changed else (runs, left_out + 1)
                scored = _Scored(split, run, evaluator)
                for name, (before, after, labels) in changed.items():
                    _count(found[name], scored, before, after, labels)
    return {"runs": runs, "left_out": left_out, "seconds": _processor_s() - began, "changes": found}


def _processor_s() -> float:
    """Return the seconds that this process and those that it waited for have computed."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


_Changed = tuple[list[Prediction], list[Prediction], list[dict[str, Any]]]


def _labels(split: Split, run: str) -> list[dict[str, Any]]:
    return [label for label in split.labels[run]["labels"] if label["certainty"] == "sure"]


def _findings(rows: Rows, labels: list[dict[str, Any]]) -> dict[str, _Changed]:
    """Return, for each change, the findings before that could survive it, those after it, and such labels."""
    if len(rows) > MOST_ROWS:
        return {}
    rows = [{**row, "_at": row["global_step"]} for row in rows]
    original = _loud(rows)
    changed: dict[str, _Changed] = {}
    for name, change in CHANGES.items():
        other = change(rows)
        if name in _THINNED and len(other) < FEWEST_ROWS:
            continue
        gone = {field for row in rows for field in row} - {field for row in other for field in row}
        if name.startswith("without") and not gone:
            continue
        before = [prediction for prediction in original if prediction["metric"] not in gone]
        left = [label for label in labels if _is_left(label, rows, other)]
        changed[name] = before, _loud(other), left
    return changed


def _loud(rows: Rows) -> list[Prediction]:
    """Return the findings above `info`, with the steps that their records had before any change."""
    found = []
    for finding in findings_of(rows):
        if finding.severity == INFO:
            continue
        prediction = as_predictions([finding])[0]
        steps = [row["_at"] for row in rows if int(row["global_step"]) == finding.start_step]
        prediction["start_step"] = min(steps, default=rows[0]["_at"])
        if finding.end_step is not None:
            last = [row["_at"] for row in rows if int(row["global_step"]) <= finding.end_step]
            prediction["end_step"] = max(last, default=rows[-1]["_at"])
        found.append({**prediction, "metric": finding.metric})
    return found


def _is_left(label: Mapping[str, Any], rows: Rows, changed: Rows) -> bool:
    """Whether the changed records still hold the label: its metric in two of its records, or in its only one."""
    before, after = (_records_of(label, some) for some in (rows, changed))
    return after >= min(2, before)


def _records_of(label: Mapping[str, Any], rows: Rows) -> int:
    fields = _INPUT.get(label["kind"], ("train_loss",))
    inside = (row for row in rows if label["start_step"] <= row["_at"] <= label["end_step"])
    if label["kind"] == "nan":
        return sum(any(not math.isfinite(row.get(field, 0.0)) for field in fields) for row in inside)
    return sum(any(field in row for field in fields) for row in inside)


class _Scored:
    """The evaluator, on one run and some of its labels."""

    def __init__(self, split: Split, run: str, evaluator: Evaluator) -> None:
        self._split, self._run, self._evaluator = split, run, evaluator
        self.is_clean = split.labels[run]["clean"]
        self._known: dict[str, dict[str, tuple[int, int]]] = {}

    def hits(self, labels: list[dict[str, Any]], predictions: list[Prediction]) -> dict[str, tuple[int, int]]:
        """Return how many of `labels` there are and how many are found, for each kind."""
        # Most changes leave most findings as they were.
        key = repr((labels, predictions))
        if key not in self._known:
            self._known[key] = self._hits(labels, predictions)
        return self._known[key]

    def _hits(
        self, labels: list[dict[str, Any]], predictions: list[Prediction]
    ) -> dict[str, tuple[int, int]]:
        about = {"labels": labels, "clean": False}
        only = Split(
            name="", folder=self._split.folder, labels={self._run: about}, left_out=(), repositories={}
        )
        kinds = self._evaluator.score(only, {self._run: predictions})["kinds"]
        return {kind: (kinds[kind]["labels"], kinds[kind]["hit"]) for kind in _ROWS if kind in kinds}


def _count(
    found: dict[str, Any],
    scored: _Scored,
    before: list[Prediction],
    after: list[Prediction],
    labels: list[Any],
) -> None:
    if scored.is_clean:
        found["clean"] += 1
        for each in after:
            found["alarms"][each["kind"]] = found["alarms"].get(each["kind"], 0) + 1
    as_labels = [{**each, "certainty": "sure", "end_step": _end_of(each)} for each in before]
    for place, expected in (("survived", as_labels), ("labels", labels)):
        if not expected:
            continue
        for kind, (there, hit) in scored.hits(expected, after).items():
            counts = found["kinds"].setdefault(kind, {"survived": [0, 0], "labels": [0, 0]})
            counts[place][0] += there
            counts[place][1] += hit


def _end_of(prediction: Prediction) -> float:
    return math.inf if prediction["end_step"] is None else float(prediction["end_step"])


def section(results: Mapping[str, Any]) -> list[str]:
    """Return the tables in Markdown."""
    changes = results["changes"]
    kinds = [kind for kind in _ROWS if any(kind in of["kinds"] for of in changes.values())]

    def rows(place: str) -> Iterable[list[str]]:
        for name, of in changes.items():
            counts = [of["kinds"].get(kind, {place: [0, 0]})[place] for kind in kinds]
            total = [sum(each[side] for each in counts) for side in (0, 1)]
            cells = [_share(*each) for each in (total, *counts)]
            yield [name, *cells, *([_alarms(of)] if place == "labels" else [])]

    header = ["change", "all", *(f"`{kind}`" for kind in kinds)]
    return [
        "### On perturbed curves",
        (
            f"{results['runs']} of these runs (not the {results['left_out']} with more than {MOST_ROWS:,} records) "
            "in another unit, logged at other intervals, smoothed, rounded, or with a metric missing; "
            f"{results['seconds']:.0f} s of processor time."
        ),
        (
            "How many of the findings on the unchanged curve come again at the same place; "
            "a `spike` may become a `divergence`. "
            "Findings in a metric that is missing are left out, and so are curves with fewer than "
            f"{FEWEST_ROWS} records left."
        ),
        table(header, rows("survived")),
        (
            "Sure labels found, of those that the changed records still hold (two of their records or more), "
            "and alarms on clean runs:"
        ),
        table([*header, "alarms on clean runs"], rows("labels")),
    ]


def _share(there: int, hit: int) -> str:
    return f"{hit} of {there}" if there else "-"


def _alarms(of: Mapping[str, Any]) -> str:
    by_kind = ", ".join(f"`{kind}` {number}" for kind, number in sorted(of["alarms"].items()))
    return f"{sum(of['alarms'].values())} on {of['clean']}" + (f" ({by_kind})" if by_kind else "")


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _values(rows: Rows, name: str) -> list[float]:
    return [row[name] for row in rows if _is_number(row.get(name)) and math.isfinite(row[name])]


def _median_of(rows: Rows, name: str) -> float:
    values = _values(rows, name)
    return statistics.median(values) if values else 0.0


def _noise_of(rows: Rows, name: str) -> float:
    changes = [abs(later - earlier) for earlier, later in pairwise(_values(rows, name))]
    return CHANGE_TO_SIGMA * statistics.median(changes) if changes else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Score the detectors on perturbed curves.")
    parser.add_argument("--corpus", type=Path, default=DEFAULT)
    args = parser.parse_args(argv)
    print("\n\n".join(section(measure(splits_of(args.corpus), Evaluator(args.corpus)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
