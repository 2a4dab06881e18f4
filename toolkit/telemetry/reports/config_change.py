"""What to change in a run's configuration because of its findings, as a diff of its YAML."""

from __future__ import annotations

import copy
import difflib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.finding import INFO, Finding
from toolkit.telemetry.runs.listing.config_diff import to_yaml
from toolkit.telemetry.runs.listing.run_start import CLIPPING
from toolkit.telemetry.runs.settings import as_number, setting_text

_LR: Final = ("learning_rate", "lr", "base_lr", "max_lr", "unet_lr")
_WARMUP: Final = ("warmup_steps", "lr_warmup_steps", "num_warmup_steps", "warmup")
_STEPS: Final = ("max_steps", "steps", "num_steps", "total_steps", "max_train_steps")
_WORKERS: Final = ("num_workers", "dataloader_num_workers", "dataloader_workers")
_DTYPE: Final = ("dtype", "precision", "mixed_precision", "train_dtype")
_KL: Final = ("kl_coef", "init_kl_coef", "kl_coeff", "kl_loss_coef", "beta")
_ENTROPY: Final = ("ent_coef", "entropy_coef", "entropy_coeff", "entropy_loss_coef")
_SHUFFLE: Final = ("shuffle", "dataloader_shuffle")
_BF16: Final = {"fp16": "bf16", "half": "bf16", "float16": "bfloat16", "16-mixed": "bf16-mixed"}
_CLIP_AT: Final = 1.0
_LEAST_LR: Final = 1e-6
"""A rate that moves every model a little; what is below it was too small by more than ten times."""
_LEAST_BONUS: Final = 0.01
_MIN_WARMUP: Final = 100
_MAX_VALUES: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Changes to a configuration that follow from findings."""

    diff: str
    """A unified diff of the YAML; empty if nothing follows."""
    reasons: tuple[str, ...] = ()
    """One sentence for each change."""


def change_for(config: Any, findings: Sequence[Finding]) -> ConfigChange:
    """Return what `findings` suggest to change in `config`, as the run recorded it.

    Only what a finding's advice asks for is changed, each setting once, by the most severe finding. A label leak and
    a dead adapter are faults of the data and of the code: no setting mends them.
    """
    if not isinstance(config, Mapping) or not config:
        return ConfigChange(diff="")
    new = copy.deepcopy(dict(config))
    steps = next((as_number(where[key]) for where, key in _places(new, _STEPS)), None)
    reasons: list[str] = []
    done: set[tuple[str, ...]] = set()
    for finding in findings:
        for names, value_of, added in _advised(finding, steps):
            change = None if names in done else _change(new, names, value_of, added)
            if change is not None:
                done.add(names)
                reasons.append(f"{change} ({title_of(finding).lower()} at step {finding.start_step:,})")
    lines = difflib.unified_diff(
        to_yaml(config).splitlines(),
        to_yaml(new).splitlines(),
        "the configuration of this run",
        "what to try next",
        n=2,
        lineterm="",
    )
    return ConfigChange(diff="\n".join(lines), reasons=tuple(reasons))


_NewValue = Callable[[Any], Any]
"""Returns the new value of a setting; None if it stays as it is."""


def _advised(
    finding: Finding, steps: float | None
) -> Iterator[tuple[tuple[str, ...], _NewValue, float | None]]:
    """Yield the settings that are a part of a finding's advice, and what is added where there is none of them."""
    kind, evidence = finding.kind, finding.evidence
    if kind in ("nan", "loss_scale", "underflow"):
        yield _DTYPE, lambda value: _BF16.get(str(value).lower()), None
    if kind == "policy_collapse":
        yield _ENTROPY, _scaled(2.0, least=_LEAST_BONUS), None
    is_from_the_start = kind == "divergence" and "first" in evidence
    if kind in ("nan", "divergence", "policy_collapse"):
        yield _LR, _scaled(0.1 if is_from_the_start else 0.5), None
    if is_from_the_start:
        wanted = max(_MIN_WARMUP, int((steps or 0.0) * 0.05))
        wanted = max(1, int(steps / 10)) if steps is not None and wanted > steps / 4 else wanted
        yield _WARMUP, lambda value: _where(value, lambda number: number < wanted, wanted), wanted
    # One spike that is over by itself needs nothing.
    is_lasting = finding.is_open or finding.repeats
    if kind in ("nan", "divergence", "exploding_grad") or (kind == "spike" and is_lasting):
        yield CLIPPING, lambda value: None if 0 < (as_number(value) or 0) <= _CLIP_AT else _CLIP_AT, _CLIP_AT
    if kind == "lr_problem" and "level" in evidence:
        # The variant of a rate that is too high.
        yield _LR, _scaled(1 / 3), None
    if kind == "lr_too_small" and finding.severity != INFO:
        # An info is a usual rate: there it may be anything else.
        yield _LR, _scaled(10.0, least=_LEAST_LR), None
    if kind == "overfit" and "best_step" in evidence:
        best = int(evidence["best_step"])
        yield _STEPS, lambda value: _where(value, lambda number: 0 < best < number, best), None
    if kind == "data_starvation":
        yield _WORKERS, lambda value: _where(value, lambda number: 0 <= number <= 16, 4, 2.0), None
    if kind == "reward_hacking" and "kl" in finding.metric.lower():
        # Long completions have no setting that every trainer knows.
        yield _KL, _scaled(2.0, least=_LEAST_BONUS), None
    if kind == "data_repeated" and "alike_pct" in evidence:
        # What is learnt by heart in any order needs more data, which is no setting.
        yield _SHUFFLE, lambda value: True if value is False else None, None


def _scaled(factor: float, *, least: float = 0.0) -> _NewValue:
    def new(value: Any) -> float | None:
        number = as_number(value)
        if number is None or number < 0 or (number == 0 and not least):
            return None
        return max(float(f"{number * factor:.3g}"), least)

    return new


def _where(value: Any, is_to_change: Callable[[float], bool], new: int, factor: float = 0.0) -> int | None:
    """Return `new`, or a multiple of the number that is larger, if `value` is a number to change."""
    number = as_number(value)
    return None if number is None or not is_to_change(number) else max(new, int(number * factor))


def _change(
    config: dict[str, Any], names: tuple[str, ...], value_of: _NewValue, added: float | None
) -> str | None:
    """Change the first of these settings that is to be changed, and say how; None if none is.

    Without one, `added` is put next to the learning rate, where trainers have it.
    """
    places = _places(config, names)
    for where, key in places:
        before, value = where[key], value_of(where[key])
        if value is not None:
            where[key] = value
            return f"{key}: {setting_text(before)} → {setting_text(value)}"
    if names is _DTYPE:
        for where, key in _places(config, ("fp16",)):
            if where[key] is True:
                where.update(fp16=False, bf16=True)
                return "fp16: true → false, bf16: true"
    for where, key in [] if places or added is None else _places(config, _LR)[:1]:
        items = list(where.items())
        at = list(where).index(key) + 1
        where.clear()
        where.update([*items[:at], (names[0], added), *items[at:]])
        return f"{names[0]}: {setting_text(added)}, new here: check what your trainer calls it"
    return None


def _places(config: dict[str, Any], names: Sequence[str]) -> list[tuple[dict[str, Any], str]]:
    """Return where these settings have a value in a nested configuration; outer ones before inner ones."""
    found: list[tuple[dict[str, Any], str]] = []
    waiting: list[Any] = [config]
    for item in itertools.islice(waiting, _MAX_VALUES):
        if isinstance(item, dict):
            found += ((item, key) for key, value in item.items() if _is_set(key, value, names))
            waiting += item.values()
        elif isinstance(item, list):
            waiting += [inner for inner in item if isinstance(inner, dict)]
    return sorted(found, key=lambda place: names.index(place[1]))


def _is_set(key: Any, value: Any, names: Sequence[str]) -> bool:
    return key in names and value is not None and not isinstance(value, (dict, list))
