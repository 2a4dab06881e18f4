"""What to change in a run's configuration because of its findings, as a diff of its YAML."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from toolkit.diagnostics.catalogue import title_of
from toolkit.diagnostics.finding import INFO, Finding

_LR: Final = ("learning_rate", "lr", "base_lr", "max_lr", "unet_lr")
_WARMUP: Final = ("warmup_steps", "lr_warmup_steps", "num_warmup_steps", "warmup")
_CLIP: Final = (
    "max_grad_norm",
    "grad_clip",
    "clip_grad_norm",
    "gradient_clip_val",
    "gradient_clipping",
    "clip_grad",
)
_STEPS: Final = ("max_steps", "steps", "num_steps", "total_steps", "max_train_steps")
_WORKERS: Final = ("num_workers", "dataloader_num_workers", "dataloader_workers")
_DTYPE: Final = ("dtype", "precision", "mixed_precision", "train_dtype")
_KL: Final = ("kl_coef", "init_kl_coef", "kl_coeff", "kl_loss_coef", "beta")
_ENTROPY: Final = ("ent_coef", "entropy_coef", "entropy_coeff", "entropy_loss_coef")
_SHUFFLE: Final = ("shuffle", "dataloader_shuffle")
_FP16: Final = frozenset({"fp16", "float16", "half", "16-mixed"})
_CLIP_AT: Final = 1.0
_LEAST_LR: Final = 1e-6
"""A rate that moves every model a little; what is below it was too small by more than ten times."""
_LEAST_BONUS: Final = 0.01
_MIN_WARMUP: Final = 100
_MAX_DEPTH: Final = 12
_MAX_VALUES: Final = 5_000

Place = tuple[MutableMapping[str, Any], str]
"""A mapping of the configuration, and a key in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Changes to a configuration that follow from findings."""

    diff: str
    """A unified diff of the YAML; empty if nothing follows."""
    reasons: tuple[str, ...] = ()
    """One sentence for each change."""


def change_for(config: Any, findings: Sequence[Finding]) -> ConfigChange:
    """Return what `findings` suggest to change in `config`, as the run recorded it.

    Only what a finding's advice asks for is changed, each setting once, by the most severe finding.
    """
    if not isinstance(config, Mapping) or not config:
        return ConfigChange(diff="")
    new = _plain(config)
    editor = _Editor(new)
    for finding in findings:
        rule = _RULES.get(finding.kind)
        if rule is not None:
            rule(editor, finding)
    if not editor.reasons:
        return ConfigChange(diff="")
    lines = difflib.unified_diff(
        _yaml(_plain(config)),
        _yaml(new),
        "the configuration of this run",
        "what to try next",
        n=2,
        lineterm="",
    )
    return ConfigChange(diff="\n".join(lines), reasons=tuple(editor.reasons))


class _Editor:
    """Changes a configuration in place, each setting at most once."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._done: set[tuple[str, ...]] = set()
        self.reasons: list[str] = []

    def lower_lr(self, factor: float, finding: Finding) -> None:
        place = self._place(_LR)
        number = None if place is None else _number(place[0][place[1]])
        if place is None or number is None or number <= 0 or not self._first(_LR):
            return
        where, key = place
        new = float(f"{number / factor:.3g}")
        where[key] = new
        self._because(f"{key}: {number:g} → {new:g}", finding)

    def raise_lr(self, factor: float, finding: Finding) -> None:
        place = self._place(_LR)
        number = None if place is None else _number(place[0][place[1]])
        if place is None or number is None or number <= 0 or not self._first(_LR):
            return
        where, key = place
        new = max(float(f"{number * factor:.3g}"), _LEAST_LR)
        where[key] = new
        self._because(f"{key}: {number:g} → {new:g}", finding)

    def double(self, names: tuple[str, ...], least: float, finding: Finding) -> None:
        """Raise a coefficient that the configuration has; what another trainer calls it is not guessed."""
        place = self._place(names)
        number = None if place is None else _number(place[0][place[1]])
        if place is None or number is None or number < 0 or not self._first(names):
            return
        where, key = place
        where[key] = max(float(f"{2 * number:.3g}"), least)
        self._because(f"{key}: {number:g} → {where[key]:g}", finding)

    def shuffle(self, finding: Finding) -> None:
        place = self._place(_SHUFFLE, wanted=lambda value: value is False)
        if place is not None and self._first(_SHUFFLE):
            where, key = place
            where[key] = True
            self._because(f"{key}: false → true", finding)

    def clip(self, finding: Finding) -> None:
        place = self._place(_CLIP)
        if place is not None:
            where, key = place
            number = _number(where[key])
            if (number is None or number <= 0 or number > _CLIP_AT) and self._first(_CLIP):
                self._because(f"{key}: {where[key]} → {_CLIP_AT}", finding)
                where[key] = _CLIP_AT
            return
        self._add(_CLIP, _CLIP_AT, finding)

    def warm_up(self, finding: Finding) -> None:
        steps = self._value(_STEPS)
        wanted = max(_MIN_WARMUP, int(steps * 0.05)) if steps is not None else _MIN_WARMUP
        if steps is not None and wanted > steps / 4:
            wanted = max(1, int(steps / 10))
        place = self._place(_WARMUP)
        if place is not None:
            where, key = place
            number = _number(where[key])
            if number is not None and number < wanted and self._first(_WARMUP):
                self._because(f"{key}: {where[key]} → {wanted}", finding)
                where[key] = wanted
            return
        self._add(_WARMUP, wanted, finding)

    def to_bf16(self, finding: Finding) -> None:
        place = self._place(_DTYPE, wanted=lambda value: isinstance(value, str) and value.lower() in _FP16)
        if place is not None and self._first(_DTYPE):
            where, key = place
            new = (
                "bf16-mixed"
                if where[key] == "16-mixed"
                else "bfloat16"
                if where[key] == "float16"
                else "bf16"
            )
            self._because(f"{key}: {where[key]} → {new}", finding)
            where[key] = new
        elif self._value_is_true("fp16") and self._first(_DTYPE):
            where, key = self._place(("fp16",)) or (self._config, "fp16")
            where[key] = False
            where["bf16"] = True
            self._because("fp16: true → false, bf16: true", finding)

    def end_at(self, step: float | None, finding: Finding) -> None:
        place = self._place(_STEPS)
        number = None if place is None else _number(place[0][place[1]])
        if place is None or number is None or step is None or not 0 < step < number:
            return
        if self._first(_STEPS):
            where, key = place
            where[key] = int(step)
            self._because(f"{key}: {number:g} → {int(step)}", finding)

    def more_workers(self, finding: Finding) -> None:
        place = self._place(_WORKERS)
        number = None if place is None else _number(place[0][place[1]])
        if place is not None and number is not None and 0 <= number <= 16 and self._first(_WORKERS):
            where, key = place
            where[key] = 4 if number < 2 else int(2 * number)
            self._because(f"{key}: {number:g} → {where[key]}", finding)

    def _add(self, names: tuple[str, ...], value: float, finding: Finding) -> None:
        """Put a new setting beside the learning rate, where trainers have it."""
        beside = self._place(_LR)
        if beside is None or not self._first(names):
            return
        where, key = beside
        _insert_behind(where, key, names[0], value)
        self._because(f"{names[0]}: {value:g}, new here: check what your trainer calls it", finding)

    def _because(self, what: str, finding: Finding) -> None:
        title = title_of(finding.kind, finding.evidence)
        self.reasons.append(f"{what} ({title.lower()} at step {finding.start_step:,})")

    def _first(self, names: tuple[str, ...]) -> bool:
        is_first = names not in self._done
        self._done.add(names)
        return is_first

    def _value(self, names: tuple[str, ...]) -> float | None:
        place = self._place(names)
        return None if place is None else _number(place[0][place[1]])

    def _value_is_true(self, name: str) -> bool:
        place = self._place((name,))
        return place is not None and place[0][place[1]] is True

    def _place(
        self, names: tuple[str, ...], wanted: Callable[[Any], bool] = lambda value: value is not None
    ) -> Place | None:
        """Return where the first of these settings is that has a value; outer ones before inner ones."""
        found = list(_places(self._config))
        for name in names:
            for where, key in found:
                value = where[key]
                if key == name and not isinstance(value, (dict, list)) and wanted(value):
                    return where, key
        return None


def _diverged(editor: _Editor, finding: Finding) -> None:
    if "first" in finding.evidence:
        editor.lower_lr(10.0, finding)
        editor.warm_up(finding)
    else:
        editor.lower_lr(2.0, finding)
    editor.clip(finding)


def _not_a_number(editor: _Editor, finding: Finding) -> None:
    editor.to_bf16(finding)
    editor.lower_lr(2.0, finding)
    editor.clip(finding)


def _spiked(editor: _Editor, finding: Finding) -> None:
    # One that is over by itself needs nothing.
    if finding.is_open or finding.repeats:
        editor.clip(finding)


def _exploded(editor: _Editor, finding: Finding) -> None:
    editor.clip(finding)


def _lr_is_wrong(editor: _Editor, finding: Finding) -> None:
    if "level" in finding.evidence:
        # The variant of a rate that is too high.
        editor.lower_lr(3.0, finding)


def _overflows(editor: _Editor, finding: Finding) -> None:
    editor.to_bf16(finding)


def _overfits(editor: _Editor, finding: Finding) -> None:
    editor.end_at(finding.evidence.get("best_step"), finding)


def _hacks(editor: _Editor, finding: Finding) -> None:
    # Long completions have no setting that every trainer knows.
    if "kl" in finding.metric.lower():
        editor.double(_KL, _LEAST_BONUS, finding)


def _collapses(editor: _Editor, finding: Finding) -> None:
    editor.double(_ENTROPY, _LEAST_BONUS, finding)
    editor.lower_lr(2.0, finding)


def _moves_nothing(editor: _Editor, finding: Finding) -> None:
    # An info is a usual rate: there it may be anything else.
    if finding.severity != INFO:
        editor.raise_lr(10.0, finding)


def _repeats(editor: _Editor, finding: Finding) -> None:
    # What is learnt by heart in any order needs more data, which is no setting.
    if "alike_pct" in finding.evidence:
        editor.shuffle(finding)


def _starves(editor: _Editor, finding: Finding) -> None:
    editor.more_workers(finding)


_RULES: Final[Mapping[str, Callable[[_Editor, Finding], None]]] = {
    "nan": _not_a_number,
    "divergence": _diverged,
    "spike": _spiked,
    "exploding_grad": _exploded,
    "lr_problem": _lr_is_wrong,
    "loss_scale": _overflows,
    "overfit": _overfits,
    "data_starvation": _starves,
    "underflow": _overflows,
    "lr_too_small": _moves_nothing,
    "reward_hacking": _hacks,
    "policy_collapse": _collapses,
    "data_repeated": _repeats,
}
"""By kind of finding: the part of its advice that is a setting.

A label leak and a dead adapter are faults of the data and of the code: no setting mends them.
"""


def _places(config: dict[str, Any]) -> Iterator[Place]:
    """Yield every key of a nested configuration, outer ones first."""
    waiting: list[Any] = [config]
    for _ in range(_MAX_VALUES):
        if not waiting:
            return
        item = waiting.pop(0)
        if isinstance(item, dict):
            yield from ((item, key) for key in item)
            waiting += item.values()
        elif isinstance(item, list):
            waiting += [inner for inner in item if isinstance(inner, dict)]


def _insert_behind(where: MutableMapping[str, Any], key: str, name: str, value: float) -> None:
    items = list(where.items())
    where.clear()
    for old, inner in items:
        where[old] = inner
        if old == key:
            where[name] = value


def _number(value: Any) -> float | None:
    """Return a setting as a number; YAML reads 1e-4 as a text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a copy of plain values, which YAML can write; a list that occurs twice is written twice."""
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return copy.copy(value) if isinstance(value, (bool, int, float, str)) or value is None else str(value)


def _yaml(config: Any) -> list[str]:
    text: str = yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=100)
    return text.splitlines()
