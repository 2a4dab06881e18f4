"""A second reading of the labels, by the written rules of the corpus and with the whole run in sight.

The rules of LABELS.md as code, each with its numbers; nothing of our detectors is used. Where the rule and the label
differ, two labellers might, too: such labels are listed, and the scores are given again without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.diagnose_eval.corpus import Evaluator, Prediction, Rows, Split
from benchmarks.diagnose_eval.markdown import table
from benchmarks.diagnose_eval.ours import predictions
from benchmarks.diagnose_eval.scores import FAMILIES, counts_of, precision, recall

Series = NDArray[np.float64]
Label = Mapping[str, Any]

RISE = 0.2
ROBUST_DEVIATIONS = 6.0
LONG = 0.25
"""A spike rises so far and comes back; an excursion longer than this share of the run is a divergence."""
FLAT_SHARE = 0.5
GAIN = 0.05
"""A plateau: no progress over half of the rows. Less than this share of the whole improvement does not count."""
OVERFIT_RISE = 0.1
EVALS_AFTER = 4
VAL_RISE = 0.5
NORM_RATIO = 10.0
RATE_FALL = 0.25
WAITING = 0.3
BUSY_PCT = 50.0
AROUND = 20
"""Records before a label that say what is usual."""


def read_again(label: Label, rows: Rows) -> str:
    """Return why the written rule does not hold for `label`; empty if it does."""
    return _RULES[label["kind"]](label, rows)


def _series(rows: Rows, *names: str) -> tuple[Series, Series]:
    """Return the steps and values of the first of these fields that the run has."""
    for name in names:
        pairs = [(row["global_step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
        if pairs:
            steps, values = np.array(pairs, dtype=float).T
            return steps, values
    return np.zeros(0), np.zeros(0)


def _parts(label: Label, steps: Series, values: Series) -> tuple[Series, Series, Series]:
    """Return the values before the label, of it, and after it."""
    before, after = steps < label["start_step"], steps > label["end_step"]
    return values[before], values[~before & ~after], values[after]


def _noise(values: Series) -> float:
    """Return the deviation from a centred median of five, as a person sees it."""
    finite = values[np.isfinite(values)]
    if len(finite) < 5:
        return 0.0
    padded = np.pad(finite, 2, mode="edge")
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)
    return 1.4826 * float(np.median(np.abs(finite - smooth))) + 1e-12


def _finite(values: Series) -> Series:
    return values[np.isfinite(values)]


def _nan(label: Label, rows: Rows) -> str:
    for name in ("train_loss", "val_loss", "grad_norm"):
        if not np.isfinite(_parts(label, *_series(rows, name))[1]).all():
            return ""
    return "every value is finite"


def _rise(label: Label, rows: Rows) -> tuple[str, float, Series, Series]:
    steps, values = _series(rows, "train_loss")
    before, inside, after = (_finite(part) for part in _parts(label, steps, values))
    if not len(inside):
        return "no finite training loss in it", 0.0, before, after
    # A label at the very start has nothing before it: its own lowest value is the level.
    lately = before[-AROUND:]
    level = float(np.median(lately)) if len(lately) >= 3 else float(np.min(_finite(values)))
    rise = float(np.max(inside)) - level
    noise = max(_noise(lately), 0.01 * abs(level))
    why = ""
    if rise < RISE * abs(level):
        why = f"rises by {rise / max(abs(level), 1e-12):.0%} only"
    elif rise < ROBUST_DEVIATIONS * noise:
        why = f"rises by {rise / noise:.1f} deviations only"
    return why, level, before, after


def _spike(label: Label, rows: Rows) -> str:
    why, level, before, after = _rise(label, rows)
    if why:
        return why
    later = after[:AROUND]
    if not len(later):
        return "the run ends in it"
    back = float(np.min(later)) - level
    noise = max(_noise(before[-AROUND:]), 0.01 * abs(level))
    return "" if back <= max(RISE * abs(level), 3.0 * noise) else "does not come back"


def _divergence(label: Label, rows: Rows) -> str:
    steps, values = _series(rows, "train_loss")
    before, inside, after = _parts(label, steps, values)
    if not len(inside):
        return "no training loss in it"
    if not np.isfinite(inside).all() or not np.isfinite(after).all():
        return ""
    last = inside[len(inside) // 2 :]
    if len(last) >= 10 and float(np.ptp(last)) <= 1e-6 * max(1e-12, abs(float(last[0]))):
        return ""
    best = float(np.min(before)) if len(before) else float(np.min(inside))
    tail = values[-max(3, len(values) // 20) :]
    is_long = label["end_step"] - label["start_step"] > LONG * (steps[-1] - steps[0])
    is_up = float(np.median(inside)) - best >= RISE * abs(best)
    if float(np.median(tail)) - best >= RISE * abs(best) or (is_long and is_up):
        return ""
    return f"ends {(float(np.median(tail)) - best) / max(abs(best), 1e-12):+.0%} from its best"


def _plateau(label: Label, rows: Rows) -> str:
    steps, values = _series(rows, "train_loss")
    _, inside, _ = _parts(label, steps, values)
    inside, whole = _finite(inside), _finite(values)
    share = len(inside) / max(1, len(values))
    if share < FLAT_SHARE:
        return f"{share:.0%} of the rows"
    quarter = max(1, len(inside) // 4)
    gain = float(np.median(inside[:quarter]) - np.median(inside[-quarter:]))
    head = max(1, len(whole) // 50)
    first = max(float(np.median(whole[:head])), float(np.median(inside[:quarter])))
    improvement = first - float(np.min(whole))
    if gain <= max(GAIN * improvement, _noise(inside)) or gain <= 0.005 * abs(float(np.median(inside))):
        return ""
    return f"gains {gain / max(improvement, 1e-12):.0%} of the run's improvement"


def _overfit(label: Label, rows: Rows) -> str:
    steps, values = _series(rows, "val_loss")
    keep = np.isfinite(values)
    steps, values = steps[keep], values[keep]
    if not len(values):
        return "no validation loss"
    inside = (steps >= label["start_step"]) & (steps <= label["end_step"])
    if not inside.any():
        return "no evaluation in it"
    place = int(np.flatnonzero(inside)[np.argmin(values[inside])])
    best, after = float(values[place]), values[place + 1 :][steps[place + 1 :] <= label["end_step"]]
    if len(after) < EVALS_AFTER:
        return f"{len(after)} evaluations after the best"
    # The last third of them: where it went.
    rise = float(np.median(after[-max(3, len(after) // 3) :])) - best
    if rise < OVERFIT_RISE * abs(best):
        return f"rises by {rise / max(abs(best), 1e-12):.0%} only"
    if rise < 2.0 * _noise(values):
        return f"rises by {rise / _noise(values):.1f} deviations only"
    train_steps, train = _series(rows, "train_loss")
    if len(train) >= 10:
        near, far = (
            train[(train_steps >= a) & (train_steps <= b)] for a, b in _ends(label, float(steps[place]))
        )
        near, far = _finite(near), _finite(far)
        if len(near) and len(far):
            before, now = float(np.median(near)), float(np.median(far))
            if now > before + max(0.05 * abs(before), _noise(train)):
                return "the training loss rises, too"
    return ""


def _ends(label: Label, best: float) -> tuple[tuple[float, float], tuple[float, float]]:
    width = 0.1 * max(1.0, label["end_step"] - best)
    return (best - width, best + width), (label["end_step"] - width, label["end_step"])


def _val_spike(label: Label, rows: Rows) -> str:
    steps, values = _series(rows, "val_loss")
    before, inside, after = _parts(label, steps, values)
    if not np.isfinite(inside).all():
        return ""
    near = np.concatenate([_finite(before)[-7:], _finite(after)[:7]])
    if not len(near) or not len(inside):
        return "nothing to compare it with"
    level = float(np.median(near))
    rise = float(np.max(inside)) - level
    if rise < VAL_RISE * abs(level):
        return f"rises by {rise / max(abs(level), 1e-12):.0%} only"
    return "" if float(np.max(inside)) > float(np.max(near)) else "no higher than its neighbours"


def _exploding(label: Label, rows: Rows) -> str:
    before, inside, _ = _parts(label, *_series(rows, "grad_norm"))
    if not np.isfinite(inside).all():
        return ""
    usual = float(np.median(_finite(before)[-100:])) if len(_finite(before)) else float(np.min(inside))
    ratio = float(np.max(inside)) / max(usual, 1e-12)
    return "" if ratio >= NORM_RATIO else f"{ratio:.1f} times the usual norm"


def _throughput(label: Label, rows: Rows) -> str:
    falls = []
    for steps, speeds in _speeds(rows):
        before, inside, _ = _parts(label, steps, speeds)
        if len(before) and len(inside):
            falls.append(1.0 - float(np.median(inside)) / float(np.median(before)))
    if not falls:
        return "nothing to compare it with"
    return "" if max(falls) >= RATE_FALL else f"falls by {max(falls):.0%} only"


def _speeds(rows: Rows) -> Iterator[tuple[Series, Series]]:
    """Yield each form in which the run has its speed."""
    for name in ("tokens_per_sec", "iters_per_sec", "iters_per_sec_avg", "step_time_s", "epoch_time_s"):
        steps, values = _series(rows, name)
        yield steps, 1.0 / np.maximum(values, 1e-12) if name.endswith("time_s") else values
    steps, clock = _series(rows, "elapsed_s")
    yield steps[1:], np.diff(steps) / np.maximum(np.diff(clock), 1e-12)


def _starved(label: Label, rows: Rows) -> str:
    (steps, waited), (_, took) = _series(rows, "data_time_s"), _series(rows, "step_time_s")
    if len(waited) != len(took):
        return "not every step has both times"
    share = float(np.median(_parts(label, steps, waited / np.maximum(took, 1e-12))[1]))
    return "" if share >= WAITING else f"waits for {share:.0%} of a step"


def _idle(label: Label, rows: Rows) -> str:
    _, inside, _ = _parts(label, *_series(rows, "gpu_util_pct"))
    busy = float(np.mean(inside)) if len(inside) else 100.0
    return "" if busy < BUSY_PCT else f"busy for {busy:.0f} %"


_RULES: dict[str, Callable[[Label, Rows], str]] = {
    "nan": _nan,
    "spike": _spike,
    "divergence": _divergence,
    "plateau": _plateau,
    "overfit": _overfit,
    "val_spike": _val_spike,
    "exploding_grad": _exploding,
    "throughput_drop": _throughput,
    "data_starvation": _starved,
    "low_gpu_util": _idle,
}
MAIN_KINDS = ("spike", "divergence", "plateau", "overfit", "val_spike", "exploding_grad", "throughput_drop")


def measure(splits: Sequence[Split], evaluator: Evaluator) -> dict[str, Any]:
    """Return the labels that the written rules read otherwise, and the scores with and without them."""
    disputed: list[dict[str, str]] = []
    read = {kind: {"sure": [0, 0], "unsure": [0, 0]} for kind in _RULES}
    totals: dict[str, dict[str, dict[str, int]]] = {}
    for split in splits:
        said: dict[str, list[Prediction]] = {}
        undisputed: dict[str, Any] = {}
        for run, about in split.labels.items():
            rows = split.rows(run)
            said[run] = predictions(rows)
            labels = []
            for label in about["labels"]:
                kind, is_sure = label["kind"], label["certainty"] == "sure"
                if kind not in _RULES or not (is_sure or kind in MAIN_KINDS):
                    labels.append(label)
                    continue
                why = read_again(label, rows)
                counts = read[kind][label["certainty"]]
                counts[0] += 1
                counts[1] += not why
                if is_sure and why:
                    place = f"{label['start_step']:g} to {label['end_step']:g}"
                    disputed.append({"run": run, "kind": kind, "steps": place, "why": why})
                # Neither right nor wrong, as the evaluator treats what is unsure.
                labels.append({**label, "certainty": "unsure"} if why else label)
            undisputed[run] = {**about, "labels": labels}
        without = Split(
            name=split.name,
            folder=split.folder,
            labels=undisputed,
            left_out=(),
            repositories=split.repositories,
        )
        for name, scored in (("all", split), ("undisputed", without)):
            for kind, counts_now in counts_of(evaluator.score(scored, said))["kinds"].items():
                total = totals.setdefault(name, {}).setdefault(kind, dict.fromkeys(counts_now, 0))
                for key, value in counts_now.items():
                    total[key] += value
    return {"disputed": disputed, "read": read, "scores": totals}


def section(results: Mapping[str, Any]) -> list[str]:
    """Return the tables in Markdown."""
    rows = []
    for kind in FAMILIES:
        everything, undisputed = (results["scores"][name].get(kind) for name in ("all", "undisputed"))
        if everything is None:
            continue
        read = results["read"].get(kind)
        rows.append(
            [
                f"`{kind}`",
                *([_of(read[certainty]) for certainty in ("sure", "unsure")] if read else ["-", "-"]),
                _score(everything),
                _score(undisputed) if undisputed else "-",
            ]
        )
    disputed = sorted(results["disputed"], key=lambda one: (one["kind"], one["run"]))
    return [
        "### Labels read a second time",
        (
            "One annotator made the labels by eye. Here the written rules of the corpus are applied by code that sees "
            "the whole run and shares nothing with the detectors "
            "(a spike: a rise of 20 % and 6 robust deviations that comes back; a plateau: half of the rows without "
            "progress; an overfit: 10 % above the best over the last of at least four evaluations). "
            "Where both differ, two labellers might. The scores without those labels treat them as unsure."
        ),
        table(
            [
                "kind",
                "sure labels that the rule confirms",
                "unsure ones",
                "score, all: found of events, false",
                "undisputed",
            ],
            rows,
        ),
        f"{len(disputed)} sure labels are disputed:",
        table(
            ["run", "label", "steps", "by the rule"],
            [[one["run"], f"`{one['kind']}`", one["steps"], one["why"]] for one in disputed],
        ),
    ]


def _of(counts: Sequence[int]) -> str:
    return f"{counts[1]} of {counts[0]}" if counts[0] else "-"


def _score(counts: Mapping[str, int]) -> str:
    ratios = " / ".join("-" if of is None else f"{of:.2f}" for of in (precision(counts), recall(counts)))
    return f"{ratios} ({counts['found']} of {counts['labels']}, {counts['false']})"
