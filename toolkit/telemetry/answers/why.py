"""Why two runs differ: where they depart, what could have acted by then, and what differs without effect."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from toolkit.telemetry.answers import differences as kinds
from toolkit.telemetry.answers.departure import ROUNDING, Curve, Departure, equal, find_departure, shared
from toolkit.telemetry.answers.differences import Difference, Differences, kind_of_setting
from toolkit.telemetry.answers.evidence import Column, RunEvidence
from toolkit.telemetry.answers.siblings import Explained, explained
from toolkit.telemetry.diagnostics import metric_aliases as signals
from toolkit.telemetry.diagnostics.metric_aliases import signal_of
from toolkit.telemetry.runfolder.evidence.code_snapshot import CodeChange
from toolkit.telemetry.runfolder.metrics import NOT_METRICS, NOT_RESULTS, is_evaluation
from toolkit.telemetry.runfolder.records import FIRST_STEP, is_spread
from toolkit.telemetry.runs.formatting import clean, count, short_number
from toolkit.telemetry.runs.settings import as_number, is_label
from toolkit.telemetry.runs.store import RunCard

_RESULTS: Final = (
    signals.LOSS,
    signals.GRAD_NORM,
    signals.REWARD,
    signals.KL,
    signals.ENTROPY,
    signals.VAL_LOSS,
)
_SAME_RATE: Final = 1e-9
"""A learning rate that differs by less was only rounded otherwise."""
_PATIENCE: Final = 3
"""Records after which something that acts has shown."""
_NEVER_RECORDED: Final = 0.2
_UNRECORDED: Final = {"settings": 0.3, "code": 0.15, "batches": 0.05, "packages": 0.05}
"""How likely the cause is something that was not recorded, compared with the weight of what was; with the rest of it,
such as environment variables, what hardly ever acts is no answer."""
LEAST: Final = 0.1
"""A cause that is less likely is no answer."""
_LIKELY: Final = 0.4
"""A cause of a difference that noise may make, too, is at least so likely."""
_ROUNDED: Final = 0.97
"""How sure it is that runs are equal that differ by no more than rounding."""
_UNSEEN: Final = (
    "the content of the data (`log_start(data=[…])`)",
    "environment variables",
    "the seeds of everything that is random",
)
"""What may differ where all that is compared is the same."""
_WORDS: Final = ((0.9, "nearly sure"), (0.7, "likely"), (0.4, "possible"), (0.0, "a guess"))
_HALF: Final = ("bf16", "bfloat16", "fp16", "float16", "half", "16-mixed", "bf16-mixed")
_CHANGES_BATCHES: Final = (kinds.SEED, kinds.BATCH, kinds.WORLD, kinds.DATA)


_NONE: Final = Curve()
Answer = Literal["equal", "differ", "cannot be said"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A difference that could have acted by the time the runs departed."""

    difference: Difference
    share: float
    """How likely it is the cause, among everything that could have acted."""
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The answer, and what it rests on."""

    answer: Answer
    sentence: str
    sure: str
    """How sure the answer is: a word and a number."""
    names: tuple[str, str]
    departure: Departure
    step: int | None = None
    """The first step that differs, as the first run counts."""
    causes: Sequence[Cause] = ()
    """Most likely first."""
    apart: Sequence[tuple[Difference, str]] = ()
    """What differs without effect, each with the reason."""
    code: Sequence[CodeChange] = ()
    evidence: Sequence[tuple[str, str]] = ()
    needed: Sequence[str] = ()
    """What would have to be recorded to say more."""
    explained: Explained | None = None
    """How much of the final difference seeds and settings explain, where other runs of the sweep show it."""

    def as_json(self) -> dict[str, Any]:
        """Return it for machines."""

        def row(one: Difference, because: str) -> dict[str, Any]:
            return {name: getattr(one, name) for name in ("kind", "what", "a", "b", "note")} | {
                "because": because
            }

        departure = self.departure
        return {
            "runs": list(self.names),
            "answer": self.answer,
            "sentence": self.sentence,
            "sure": self.sure,
            "step": self.step,
            "departure": {"how": departure.how, "metric": departure.metric, "records": len(departure.steps)},
            "causes": [
                {**row(one.difference, one.because), "share": round(one.share, 3)} for one in self.causes
            ],
            "without_effect": [row(one, because) for one, because in self.apart],
            "code": [{"path": change.path, "diff": change.unified_diff} for change in self.code],
            "evidence": [{"what": what, "found": found} for what, found in self.evidence],
            "needed": list(self.needed),
            "explained": None if self.explained is None else asdict(self.explained),
        }


def why(a: RunEvidence, b: RunEvidence, cards: Callable[[], Sequence[RunCard]] = tuple) -> Why:
    """Say whether two runs are equal, where they depart, and what is most likely the cause. Never raises.

    With `cards`, which returns the runs that they are among, it also says how much each cause explains of the end.
    """
    names = (a.name, b.name)
    for run in (a, b):
        if not any(session.steps or session.evals for session in run.sessions):
            return _unsaid(names, run.problem or f"{run.name} has no record of a step", "records of steps")
    pair = _Pair(a, b)
    if not len(pair.steps):
        both = [name for name in pair.curves[0] if name in pair.curves[1]]
        each = [_few([*curves]) or "no result" for curves in pair.curves]
        logged = (
            f"step in common at which both logged {_few(both)}"
            if both
            else f"result in common; {a.name} has {each[0]}, {b.name} has {each[1]}"
        )
        return _unsaid(names, f"they have no {logged}", "the same metric at the same steps")
    found = Differences((a, b), pair.offsets)
    found.find(pair.lr_step, has_lr=pair.rated)
    needed = [f"{what} of both runs" for what in found.missing]
    causes: list[Cause] = []
    parts: Explained | None = None
    apart = [(one, "they do not differ") for one in found.found]
    answer: Answer = "equal"
    if pair.first is not None:
        causes, apart = _ranked(found, pair.departure)
        least = _LIKELY if pair.departure.how == "growth" else LEAST
        if causes and causes[0].share >= least:
            answer, share = "differ", causes[0].share
        elif pair.departure.beyond_noise:
            answer, share = "differ", 0.99
        else:
            # Noise of this size is as likely as what was not recorded.
            answer, share = "cannot be said", 0.0
        needed += [] if causes and causes[0].share >= least else _UNSEEN
        if answer == "differ" and len(causes) > 1:
            parts = explained((a.path, b.path), cards())
            # Each of them is named then, not the likeliest alone.
            share = share if parts is None else sum(cause.share for cause in causes)
        cause = _cause_text(causes, needed) if parts is None else f" {parts.sentence}"
        text = f"{pair.departs()}{cause}{_apart_text(apart, 'Without effect on it')}"
    elif len(pair.steps) < 2:
        answer, share = "cannot be said", 0.0
        text = f"They share one record, of step {pair.named(pair.steps[0])}, and do not differ in it."
    else:
        share, text = pair.equals()
        first = pair.departure.first_digit
        if share < _ROUNDED and first is not None and found.may_act_by(first):
            answer, share = "cannot be said", 0.0
            text = f"It cannot be said whether they are only as far apart as noise is. {text}"
        text += _apart_text(apart, "What differs has no effect there")
    return Why(
        answer=answer,
        sentence=text,
        sure=_sure(share),
        names=names,
        departure=pair.departure,
        step=None if pair.first is None else pair.first - pair.offsets[0],
        causes=causes,
        apart=apart,
        code=found.code,
        evidence=pair.evidence(found.batches_equal_to),
        needed=needed,
        explained=parts,
    )


def _unsaid(names: tuple[str, str], reason: str, needed: str) -> Why:
    text, sure = f"It cannot be said whether they differ: {clean(reason)}.", _sure(0.0)
    none = Departure()
    return Why(
        answer="cannot be said", sentence=text, sure=sure, names=names, departure=none, needed=[needed]
    )


# ------------------------------------------------------------ what is compared


class _Pair:
    """The curves of both runs by steps done, where they depart, and that in words."""

    def __init__(self, a: RunEvidence, b: RunEvidence) -> None:
        self.offsets = (_offset(a), _offset(b))
        curves = [_curves(a, self.offsets[0]), _curves(b, self.offsets[1])]
        if self.offsets[0] != self.offsets[1]:
            # A first step called 0 may also be a record before any training.
            plain = [_curves(a, 0), _curves(b, 0)]
            if _equal_values(*plain) > _equal_values(*curves):
                curves, self.offsets = plain, (0, 0)
        self.rates = [curve.pop(signals.LR, _NONE) for curve in curves]
        self.curves = curves
        self.departure = find_departure(curves[0], curves[1], half=_is_half(a) and _is_half(b))
        self.steps = self.departure.steps
        at, one, two = shared(*self.rates)
        known = np.isfinite(one + two)
        self.rated = bool(known.any())
        other = known & (np.abs(one - two) > _SAME_RATE * np.maximum(np.abs(one), np.abs(two)))
        self.lr_step = int(at[other][0]) if other.any() else None
        self.first = min((at for at in (self.departure.at, self.lr_step) if at is not None), default=None)

    def named(self, step: int) -> str:
        """Return a step as the first run counts."""
        return count(step - self.offsets[0])

    def equals(self) -> tuple[float, str]:
        """Return how sure it is that they are equal, and that as a sentence."""
        found, span = self.departure, f"steps {self.named(self.steps[0])} to {self.named(self.steps[-1])}"
        span = f"in the {count(len(self.steps))} records that they share ({span})"
        if found.first_digit is None:
            return 0.8 if found.few_digits else 0.99, f"They are equal {self._digits()} {span}."
        is_rounding = found.size <= 10 ** (ROUNDING[found.half] + 1)
        return _ROUNDED if is_rounding else 0.8, (
            f"They are equal within noise {span}: {found.metric} differs from step {self.named(found.first_digit)} on, "
            f"by at most {found.size:.1g} of its value and without a jump; from one record to the next it changes by "
            f"{found.noise:.1g}."
        )

    def _digits(self) -> str:
        return "in every digit that was logged" if self.departure.few_digits else "to the last digit"

    def departs(self) -> str:
        """Return where they depart, as a sentence."""
        found, lr_step, at = self.departure, self.lr_step, self.named(self.departure.at or 0)
        if lr_step is not None and lr_step == self.first:
            before = self.steps[self.steps < lr_step]
            start = "At"
            if len(before) and (found.first_digit or lr_step) >= lr_step:
                start = f"They are equal {self._digits()} up to step {self.named(before[-1])}; at"
            one, two = (short_number(rates.at(lr_step)) for rates in self.rates)
            then = "the results do not yet" if found.at is None else f"at {at} {found.metric} does"
            return f"{start} step {self.named(lr_step)} the learning rate differs ({one} and {two}); {then}."
        size = f"{found.metric} differs by {found.size:.1g} of its value"
        if found.how == "growth":
            size += ", which is more than rounding"
        if found.how in ("bits", "growth") and not found.after:
            return f"They differ from their first shared record on: at step {at} {size}."
        if found.how in ("bits", "growth"):
            return f"They are equal {self._digits()} up to step {self.named(found.after)}; at {at} {size}."
        where = f"between steps {self.named(found.after)} and {at}" if found.after else f"by step {at}"
        return (
            f"Their digits differ from step {self.named(found.first_digit or 0)} on, as in runs that are not "
            f"deterministic; {where} the difference of {found.metric} goes from {found.before:.1g} to {found.size:.1g} "
            "of its value, which noise does not do."
        )

    def evidence(self, batches_to: int | None) -> list[tuple[str, str]]:
        """Return what the answer rests on."""
        names = [name for name in self.curves[0] if name in self.curves[1]]
        span = f"{count(len(self.steps))}, steps {self.named(self.steps[0])} to {self.named(self.steps[-1])}"
        rows = [("records compared", f"{span}: {_few(names, 4)}")]
        at, metric = self.departure.at, self.departure.metric
        if at is not None:
            one, two = (curve[metric].at(at) for curve in self.curves)
            rows.append((f"{metric} at step {self.named(at)}", f"{one!r} and {two!r}"))
        if self.rated:
            same = "the same" if self.lr_step is None else f"differs from step {self.named(self.lr_step)} on"
            rows.append(("learning rate", same))
        if batches_to is not None:
            same = f"the same up to step {self.named(batches_to)}" if batches_to else "differ at once"
            rows.append(("batches", same))
        tail, *loss = shared(*(curve[names[0]] for curve in self.curves))
        last = max(1, len(tail) // 10)
        ends = [short_number(float(values[-last:].mean()) if len(values) else 0.0) for values in loss]
        rows.append(
            (f"{names[0]} at the end", f"{' and '.join(ends)}, mean of {count(min(last, len(tail)))} records")
        )
        return [(clean(what), clean(found)) for what, found in rows]


def _offset(run: RunEvidence) -> int:
    """Return what turns a step of this run into the number of steps done."""
    first = run.sessions[0]
    return int(first.start.get(FIRST_STEP) == 0 or 0 in first.steps)


def _curves(run: RunEvidence, offset: int) -> dict[str, Curve]:
    """Return what training decides by steps done, the loss first; a later session replaces what it repeats."""
    found: dict[str, Curve] = {}
    for session in run.sessions:
        first = min(session.steps, default=math.inf) + offset
        found = {name: curve.before(first) for name, curve in found.items()}
        for name, column in session.columns.items():
            key = signals.LR if signal_of(name) == signals.LR else name
            if key == signals.LR or (_is_result(name) and not is_spread(name, session.columns)):
                found[key] = found.get(key, _NONE).then(column.steps, column.values, offset)
        evals: dict[str, Column] = {}
        for record in session.evals:
            step = record.get("global_step")
            for name, value in record.items() if type(step) is int else ():
                if type(value) is float and name not in NOT_METRICS and is_evaluation(name, event="eval"):
                    column = evals.setdefault(f"eval {name}", Column())
                    column.steps.append(record["global_step"])
                    column.values.append(value)
        for name, column in evals.items():
            found[name] = found.get(name, _NONE).then(column.steps, column.values, offset)
    return dict(sorted(found.items(), key=lambda item: _importance(item[0])))


def _is_result(name: str) -> bool:
    is_result = signal_of(name) in _RESULTS or is_evaluation(name) or "loss" in name.lower()
    return is_result and not name.startswith(NOT_RESULTS)


def _importance(name: str) -> int:
    signal = signal_of(name)
    return _RESULTS.index(signal) if signal in _RESULTS else len(_RESULTS)


def _equal_values(a: Mapping[str, Curve], b: Mapping[str, Curve]) -> int:
    both = (shared(a[name], b[name]) for name in a if name in b)
    return sum(int(equal(one, two).sum()) for _, one, two in both)


def _is_half(run: RunEvidence) -> bool:
    named = [value for key, value in run.settings.items() if kind_of_setting(key) == kinds.DTYPE]
    return any(str(value).lower().removeprefix("torch.") in _HALF for value in named)


# ------------------------------------------------------------ what could have acted


def _ranked(found: Differences, departure: Departure) -> tuple[list[Cause], list[tuple[Difference, str]]]:
    """Return what could be the cause, most likely first, and what could not, with the reason."""
    judged = [(one, *_fit(one, departure)) for one in found.found]
    fits = [(factor * one.weight, one, because) for one, factor, because in judged if factor * one.weight]
    apart = [(one, because) for one, factor, because in judged if not factor * one.weight]
    events = {one.acts for _, one, _ in fits if one.kind in (kinds.RESUME, kinds.REQUEST)}
    changes_batches = any(one.kind in _CHANGES_BATCHES and not one.is_batch for _, one, _ in fits)
    for at, (weight, one, _) in enumerate(fits):
        # Other batches, or another rate without a setting for it, follow from what changed them.
        is_rate = one.kind == kinds.LR and one.weight < 0.5
        if (one.is_batch and changes_batches) or (one.acts in events and (one.is_batch or is_rate)):
            fits[at] = weight * 0.1, one, "follows from another difference"
    if not fits:
        # An evaluation that draws random numbers changes a training.
        usually = "usually has no effect, but nothing else differs"
        fits = [
            (one.weight, one, usually)
            for one, _ in apart
            if one.kind == kinds.COSMETIC and not one.note and not is_label(one.what)
        ]
        apart = [row for row in apart if row[0].kind != kinds.COSMETIC or row[0].note]
    total = (
        _NEVER_RECORDED
        + sum(weight for weight, _, _ in fits)
        + sum(_UNRECORDED[name] for name in found.missing)
    )
    causes = [Cause(difference=one, share=weight / total, because=because) for weight, one, because in fits]
    return sorted(causes, key=lambda cause: -cause.share), apart


def _fit(one: Difference, found: Departure) -> tuple[float, str]:
    """Return how well a difference fits the place where the runs depart, 0 if it cannot be the cause, and why."""
    if one.kind == kinds.COSMETIC:
        return 0.0, one.note or "names, paths and intervals of logging do not act on training"
    at = math.inf if found.at is None else found.at
    alike = found.steps[found.steps <= found.after]
    if one.acts is None:
        values = [number for text in (one.a, one.b) if (number := as_number(text)) is not None]
        is_late = one.kind == kinds.SETTING and len(alike) >= _PATIENCE
        if is_late and found.after - 1 <= min(values, default=math.inf) <= at + 1:
            return 3.0, "names the step at which they depart"
        return 1.0, one.note if not one.weight else "may act at any step"
    if one.acts > at:
        return 0.0, f"acts from step {count(one.acts)} on, after they departed"
    passed = int((alike >= one.acts).sum())
    if passed > _PATIENCE and found.how in ("bits", "growth"):
        return (
            0.0,
            f"acts from step {count(one.acts)} on, and {count(passed)} records after that do not differ",
        )
    if passed > _PATIENCE:
        # What acts may take long to rise above noise.
        return (0.5 if one.is_seen else 0.1), f"acts from step {count(one.acts)} on, long before they depart"
    if one.is_seen:
        # The rate of a step acts on the results of the next.
        is_late = one.acts == at and not len(alike) and found.size > 10 ** (ROUNDING[found.half] + 1)
        is_late = is_late and one.kind in (kinds.LR, kinds.SCHEDULE)
        return (0.5 if is_late else 3.0), f"acts from step {count(one.acts)} on, where they depart"
    return 1.5, "acts from the first step on"


# ------------------------------------------------------------ words


def _sure(share: float) -> str:
    return (
        "not sure"
        if share == 0.0
        else f"{next(word for least, word in _WORDS if share >= least)} ({min(share, 0.99):.2f})"
    )


def _few(items: Sequence[str], most: int = 3) -> str:
    rest = len(items) - most
    return ", ".join(items[:most]) + (f" and {count(rest)} more" if rest > 0 else "")


def _cause_text(causes: Sequence[Cause], needed: Sequence[str]) -> str:
    if not causes:
        more = f" To say more, {_few(needed)} would be needed." if needed else ""
        return f" Nothing that was recorded differs and could have acted by then.{more}"
    best = causes[0]
    likely = "Most likely" if best.share >= _WORDS[2][0] else "Perhaps"
    text = f" {likely} because of {best.difference.text}, which {best.because}: {_sure(best.share)}."
    others = [cause.difference.text for cause in causes[1:] if cause.share >= 0.05]
    return text + (f" Also possible: {_few(others)}." if others else "")


def _apart_text(apart: Sequence[tuple[Difference, str]], what: str) -> str:
    return f" {what}: {_few([one.what for one, _ in apart])}." if apart else ""
