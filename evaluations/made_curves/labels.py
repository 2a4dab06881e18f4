"""The labels of a made run: where it departs from its twin, and whether that can be seen.

The definitions are those of the corpus (LABELS.md); what an annotator judges by eye is measured here against the
twin, which has the same seed and no fault.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from evaluations.made_curves.settings import Columns

SURE, UNSURE = "sure", "unsure"
Floats = NDArray[np.float64]
Label = dict[str, Any]

_RISE = 0.2
_SIGMAS = 6.0
_SURE_SIGMAS = 8.0
_ONE_ROW_RISE = 1.0
"""A single row counts as a sure spike from twice the level on."""
NATURAL = "without a cause"
_OWN_RISE = 0.5
_UNSTABLE = ("spike", "divergence", "exploding_grad")
_SOLVED = 0.01
_LONG = 0.25
_APART = 0.05
"""Excursions closer than this share of the run are one."""
_MOST_SURE = 3
"""Of a run full of spikes, the highest ones are labelled as sure: the rest would only count the same thing again."""


def labels_of(faulty: Columns, twin: Columns, expected: Sequence[str], fault_step: int) -> list[Label]:
    """Return what follows from the fault, if it can be seen, and what is seen besides (`NATURAL`)."""
    natural = seen_without_a_cause(faulty)
    if has_risen(twin):
        return natural
    # The loss of a policy is around zero, so that a share of it says nothing.
    is_signed = "reward" in faulty
    steps = np.asarray(faulty["step"])
    loss, other = np.asarray(faulty["train_loss"]), np.asarray(twin["train_loss"])
    labels = [*_not_a_number(faulty)]
    departures = _departures(loss, other, is_signed=is_signed)
    departures = [one for one in departures if steps[one[1]] >= fault_step]
    for label in (
        *_instability(steps, loss, other, departures, is_signed=is_signed),
        *_norms(faulty, twin, departures),
    ):
        # What does not follow from this cause may be there all the same.
        labels.append(label if label["kind"] in expected else {**label, "certainty": UNSURE})
    kinds = {label["kind"] for label in labels}
    if "plateau" in expected and "nan" not in kinds:
        labels += _plateau(steps, loss, other, fault_step, doubt="divergence" in kinds)
    if "grad_norm" in faulty:
        vanished = _vanished(faulty, twin)
        labels += [one if "vanishing_grad" in expected else {**one, "certainty": UNSURE} for one in vanished]
    if "overfit" in expected and "val_loss" in faulty:
        labels += _overfit(faulty, twin)
    if "val_spike" in expected:
        labels += _val_spike(faulty, twin)
    if "throughput_drop" in expected:
        labels += _slower(faulty, fault_step)
    if "data_starvation" in expected and "data_time_s" in faulty:
        labels += _starved(faulty)
    if "mem_leak" in expected:
        labels += _leak(faulty)
    if any(label["kind"] == "divergence" for label in labels) and "plateau" not in kinds:
        first = min(label["start_step"] for label in labels if label["kind"] == "divergence")
        labels.append(_label("plateau", first, steps[-1], UNSURE, "level after the divergence"))
    return labels + [one for one in natural if one["kind"] != "nan"]


def seen_without_a_cause(columns: Columns) -> list[Label]:
    """Return labels of what a run shows by itself, such as a natural instability: unsure ones, but for NaN."""
    loss, steps = np.asarray(columns["train_loss"]), np.asarray(columns["step"])
    labels = _not_a_number(columns)
    if labels:
        return [*labels, *(_label(kind, steps[0], steps[-1], UNSURE, NATURAL) for kind in _UNSTABLE)]
    level, noise = level_and_noise(loss)
    high = loss - level > np.maximum(_OWN_RISE * level, _SURE_SIGMAS * noise)
    for first, last in _regions(high & (level > 0), max(3, len(loss) // 50)):
        if last > first:
            labels.append(_label("spike", steps[first], steps[last], UNSURE, NATURAL))
    # Where next to nothing is left of a loss, its ups and downs do not matter.
    solved = np.flatnonzero(level < _SOLVED * np.median(loss[: max(3, len(loss) // 50)]))
    if len(solved) and loss.min() > 0:
        labels.append(_label("spike", steps[solved[0]], steps[-1], UNSURE, NATURAL))
    if has_risen(columns) and "d_loss" not in columns:
        labels.append(_label("divergence", steps[0], steps[-1], UNSURE, NATURAL))
    if "val_loss" in columns:
        labels += [{**one, "certainty": UNSURE, "note": NATURAL} for one in _overfit(columns, None)]
    return labels


def has_risen(columns: Columns) -> bool:
    """Whether the loss ends clearly above where it was: a twin like that is no measure of what is healthy."""
    loss = np.asarray(columns["train_loss"])
    if not np.isfinite(loss).all():
        return True
    window = max(5, len(loss) // 10 | 1)
    level = _median_around(loss, window)
    noise = level_and_noise(loss)[1]
    error = float(np.median(noise)) * 1.25 / math.sqrt(window)
    lowest, last = float(level.min()), float(level[-1 - window // 2 :].min())
    # Losses around zero, as of policies, have no share to rise by.
    return bool(loss.min() > 0 and last - lowest > max(_RISE * lowest, _SIGMAS * error))


def level_and_noise(values: Floats) -> tuple[Floats, Floats]:
    """Return the centred median of each place, and the usual distance from it (as a standard deviation)."""
    finite = np.where(np.isfinite(values), values, np.nan)
    level = _median_around(finite, max(5, min(51, len(values) // 10 | 1)))
    noise = 1.4826 * _median_around(np.abs(finite - level), max(15, min(151, len(values) // 4 | 1)))
    return level, np.maximum(noise, 1e-3 * np.abs(level))


def _median_around(values: Floats, window: int) -> Floats:
    padded = np.pad(values, window // 2, constant_values=np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        windows = sliding_window_view(padded, window)[: len(values)]
        middle = np.nanmedian(windows, axis=1)
    known = np.isfinite(middle)
    if not known.any():
        return np.zeros(len(values))
    return np.interp(np.arange(len(values)), np.flatnonzero(known), middle[known])


def _regions(high: NDArray[np.bool_], apart: int) -> list[tuple[int, int]]:
    found: list[list[int]] = []
    for place in np.flatnonzero(high):
        if found and place - found[-1][1] <= apart:
            found[-1][1] = int(place)
        else:
            found.append([int(place), int(place)])
    return [(first, last) for first, last in found]


def _departures(loss: Floats, other: Floats, *, is_signed: bool) -> list[tuple[int, int]]:
    """Return the rows where the loss is above its twin, and above where it was itself: single ones, or their level."""
    level, noise = level_and_noise(other)
    scale = _scale(other, level, is_signed=is_signed)
    finite = np.where(np.isfinite(loss), loss, np.nan)
    # A run that learns less than its twin is noisier and higher than that: it is measured by itself too.
    sigma = np.maximum(noise, _own_noise(finite))
    with np.errstate(invalid="ignore"):
        before = _best_before(_median_around(finite, 5), 3)
        enough = np.maximum(_RISE * np.maximum(scale, np.abs(before)), _SIGMAS * sigma)
        high = np.isfinite(loss) & (loss - level > enough) & (loss > _highest_around(other, 10))
        high &= loss - before > enough
        window = max(5, len(loss) // 25 | 1)
        own = _median_around(finite, window)
        before = _best_before(own, window)
        enough = _SIGMAS * 1.25 * sigma / math.sqrt(window)
        enough = np.maximum(_RISE * np.maximum(scale, np.abs(before)), enough)
        lasting = (own - _median_around(other, window) > enough) & (own - before > enough)
        lasting &= np.isfinite(loss) & (loss != other)
    return _regions(high | lasting, max(3, int(_APART * len(loss))))


def _own_noise(values: Floats) -> Floats:
    """Return the lowest noise so far: what comes after a departure has no part in it."""
    changes = np.abs(np.diff(values, prepend=values[:1]))
    return np.minimum.accumulate(1.05 * _median_around(changes, max(9, min(51, len(values) // 8 | 1))))


def _best_before(values: Floats, back: int) -> Floats:
    """Return the lowest value so far, without the last ones, whose windows see the row in question."""
    best = np.minimum.accumulate(values)
    return np.concatenate((np.repeat(best[:1], min(back, len(best))), best[:-back]))[: len(best)]


def _highest_around(values: Floats, reach: int) -> Floats:
    padded = np.pad(np.where(np.isfinite(values), values, -np.inf), reach, constant_values=-np.inf)
    found: Floats = sliding_window_view(padded, 2 * reach + 1).max(axis=1)
    return found


def _scale(other: Floats, level: Floats, *, is_signed: bool) -> Floats:
    spread = float(np.nanpercentile(other, 95) - np.nanpercentile(other, 5))
    return np.maximum(np.abs(level), spread) if is_signed else np.abs(level)


def _instability(
    steps: Floats, loss: Floats, other: Floats, departures: list[tuple[int, int]], *, is_signed: bool
) -> list[Label]:
    level, noise = level_and_noise(other)
    scale = _scale(other, level, is_signed=is_signed)
    rows = len(loss)
    found = []
    for first, last in departures:
        inside = loss[first : last + 1]
        inside = inside[np.isfinite(inside)]
        before = loss[max(0, first - 50) : first]
        before = before[np.isfinite(before)]
        usual = float(np.median(before)) if len(before) else float(level[first])
        # How far its own noise reaches up: a loss that does so all the time has no spike there.
        reach = float(np.quantile(before - usual, 0.95)) if len(before) >= 8 else 0.0
        unit = max(abs(usual), float(scale[first]), 1e-12)
        peak = float(inside.max() - usual) / unit
        middle = float(np.median(inside)) - usual
        error = 3 * reach / math.sqrt(max(1, min(len(inside), len(before))))
        stays = middle > max(_RISE * unit, error)
        sticks_out = peak >= _RISE and peak * unit > 2 * reach
        if not (sticks_out or (stays and len(inside) >= 8)):
            continue
        tail = loss[-max(3, rows // 20) :]
        ends_above = not np.isfinite(tail).all() or np.median(tail) - usual > max(
            _RISE * unit, 3 * float(noise[-1])
        )
        reaches_end = last >= rows - 1 - max(3, int(_APART * rows))
        is_lost = (reaches_end and ends_above) or (last - first > _LONG * rows and stays)
        kind = "divergence" if is_lost and len(inside) >= 3 else "spike"
        enough = _ONE_ROW_RISE if np.sum(inside - usual > _RISE * unit) == 1 else _RISE
        is_clear = peak >= enough and peak * unit > max(4 * reach, _SURE_SIGMAS * float(noise[first]))
        is_sure = len(before) >= 8 and (is_clear or (kind == "divergence" and stays and len(inside) >= 8))
        note = f"{1 + peak:.2g} times the level before"
        found.append((peak, _label(kind, steps[first], steps[last], SURE if is_sure else UNSURE, note)))
    highest = sorted((peak for peak, label in found if label["certainty"] == SURE), reverse=True)[:_MOST_SURE]
    return [label if peak in highest else {**label, "certainty": UNSURE} for peak, label in found]


def _not_a_number(columns: Columns) -> list[Label]:
    steps = [
        step
        for name, at in (("train_loss", "step"), ("grad_norm", "step"), ("val_loss", "eval_step"))
        for step, value in zip(columns.get(at, ()), columns.get(name, ()), strict=False)
        if not math.isfinite(value)
    ]
    return [_label("nan", min(steps), max(steps), SURE, "")] if steps else []


def _norms(faulty: Columns, twin: Columns, departures: list[tuple[int, int]]) -> list[Label]:
    """Return where the norm is at ten times its own median before and at ten times that of the twin."""
    if "grad_norm" not in faulty:
        return []
    norm, usual = np.asarray(faulty["grad_norm"]), level_and_noise(np.asarray(twin["grad_norm"]))[0]
    steps = faulty["step"]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        before = np.array(
            [np.nanmedian(norm[max(0, at - 100) : at]) if at >= 8 else np.nan for at in range(len(norm))]
        )
        high = np.isfinite(norm) & (norm > 10 * before) & (norm > 10 * usual)
    labels: list[Label] = []
    for first, last in _regions(high, max(5, len(norm) // 20)):
        reacts = any(begin <= last + 5 and end >= first - 5 for begin, end in departures)
        certainty = SURE if reacts and len(labels) < _MOST_SURE else UNSURE
        note = f"{float(np.nanmax(norm[first : last + 1] / before[first : last + 1])):.2g} times the median before"
        labels.append(_label("exploding_grad", steps[first], steps[last], certainty, note))
    return labels


def _plateau(steps: Floats, loss: Floats, other: Floats, fault_step: int, *, doubt: bool) -> list[Label]:
    """Return the rest of the run if it does not improve there and its twin does."""
    first = int(np.searchsorted(steps, fault_step))
    rows = len(loss) - first
    if rows < 0.5 * len(loss) or rows < 20 or not np.isfinite(loss[first:]).all():
        return []
    fifth = max(4, rows // 5)
    level, noise = level_and_noise(loss[first:])
    middle = max(float(np.median(np.abs(level))), 1e-12)
    gain = _gain(loss[first:], fifth)
    of_twin = _gain(other[first:], fifth)
    usual = float(np.median(noise))
    # The error of the median of a fifth: a gain below it cannot be seen.
    error = 2 * 1.25 * usual / math.sqrt(fifth)
    if not of_twin > max(0.05 * middle, 3 * error, 4 * gain):
        return []
    if gain < max(0.02 * middle, error) and not doubt:
        certainty = SURE
    elif gain < max(0.05 * middle, 2 * error):
        certainty = UNSURE
    else:
        return []
    note = f"gained {gain / middle:.1%}, its twin {of_twin / middle:.1%}"
    return [_label("plateau", steps[first], steps[-1], certainty, note)]


def _gain(values: Floats, part: int) -> float:
    return float(np.median(values[:part]) - np.median(values[-part:]))


def _vanished(faulty: Columns, twin: Columns) -> list[Label]:
    norm, usual = (np.asarray(one["grad_norm"]) for one in (faulty, twin))
    loss, other = (np.asarray(one["train_loss"]) for one in (faulty, twin))
    fifth = max(4, len(loss) // 5)
    # A norm may be small because the problem is solved.
    if not (np.isfinite(loss).all() and _gain(loss, fifth) < 0.1 * _gain(other, fifth)):
        return []
    ratio = float(np.median(norm[len(norm) // 5 :]) / max(float(np.median(usual)), 1e-12))
    if ratio > 1e-2:
        return []
    certainty = SURE if ratio < 1e-3 else UNSURE
    note = f"norm {ratio:.1g} of the twin's"
    return [_label("vanishing_grad", faulty["step"][0], faulty["step"][-1], certainty, note)]


def _overfit(faulty: Columns, twin: Columns | None) -> list[Label]:
    values = np.asarray(faulty["val_loss"])
    if len(values) < 8 or not np.isfinite(values).all():
        return []
    smooth = _median_around(values, 3)
    at = int(np.argmin(smooth))
    after = len(values) - 1 - at
    if after < 4 or smooth[at] <= 0:
        return []
    rise = float(np.median(values[-3:]) / smooth[at] - 1)
    noise = float(np.median(np.abs(np.diff(values[: max(6, at + 1)], 2)))) / smooth[at]
    train = np.asarray(faulty["train_loss"])
    there = int(np.searchsorted(faulty["step"], faulty["eval_step"][at]))
    around = max(3, len(train) // 20)
    falls = np.median(train[-around:]) <= 1.02 * np.median(train[max(0, there - around) : there + around])
    if twin is not None:
        of_twin = np.asarray(twin["val_loss"])
        falls = falls and np.median(of_twin[-3:]) < np.median(values[-3:]) * 0.97
    if not falls or rise < 0.05:
        return []
    certainty = SURE if rise >= 0.1 and rise > 2 * noise else UNSURE
    first, last = faulty["eval_step"][at], faulty["eval_step"][-1]
    return [_label("overfit", first, last, certainty, f"validation loss {rise:+.0%} from its best")]


def _val_spike(faulty: Columns, twin: Columns) -> list[Label]:
    values, usual = np.asarray(faulty["val_loss"]), np.asarray(twin["val_loss"])
    ratio = values / np.where(usual == 0, 1e-12, usual)
    changed = np.flatnonzero(values != usual)
    if not len(changed) or float(np.max(ratio[changed])) < 1.2:
        return []
    certainty = SURE if float(np.max(ratio[changed])) >= 1.5 else UNSURE
    first, last = (faulty["eval_step"][place] for place in (changed[0], changed[-1]))
    return [_label("val_spike", first, last, certainty, f"{float(np.max(ratio[changed])):.2g} times")]


def _slower(faulty: Columns, fault_step: int) -> list[Label]:
    steps, times = np.asarray(faulty["step"]), np.asarray(faulty["step_time_s"])
    begins = int(np.searchsorted(steps, fault_step))
    before, after = float(np.median(times[2:begins])), float(np.median(times[begins + 1 :]))
    if after < 1.15 * before:
        return []
    certainty = SURE if before < 0.75 * after else UNSURE
    return [
        _label("throughput_drop", steps[begins], steps[-1], certainty, f"{before / after:.2f} of the speed")
    ]


def _starved(faulty: Columns) -> list[Label]:
    share = np.asarray(faulty["data_time_s"]) / np.maximum(np.asarray(faulty["step_time_s"]), 1e-9)
    high = share >= 0.3
    if not high.any() or high.mean() < 0.1:
        return []
    first = int(np.argmax(high))
    certainty = SURE if high.mean() > 0.5 else UNSURE
    return [_label("data_starvation", faulty["step"][first], faulty["step"][-1], certainty, "")]


def _leak(faulty: Columns) -> list[Label]:
    memory = faulty["rss_mib"]
    growth = memory[-1] - memory[0]
    if growth < 200:
        return []
    certainty = SURE if growth > 1024 else UNSURE
    return [_label("mem_leak", faulty["step"][0], faulty["step"][-1], certainty, f"{growth:.0f} MiB")]


def _label(kind: str, first: float, last: float, certainty: str, note: str) -> Label:
    return {
        "kind": kind,
        "start_step": int(first),
        "end_step": int(last),
        "certainty": certainty,
        "note": note,
    }


def nothing_to_see(
    expected: Sequence[str], columns: Mapping[str, Sequence[float]], fault_step: int
) -> list[Label]:
    """Return unsure labels for a fault without a visible effect: an alarm there is neither right nor wrong."""
    last = columns["step"][-1]
    return [_label(kind, fault_step, last, UNSURE, "no effect") for kind in expected]
