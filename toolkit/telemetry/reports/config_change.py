"""What to change in a run's configuration because of its findings, as a diff of its YAML."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.finding import INFO, Finding
from toolkit.telemetry.runs.listing.config_diff import to_yaml
from toolkit.telemetry.runs.settings import as_number, setting_text

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
    editor = _Editor(new)
    for finding in findings:
        _apply(editor, finding)
    if not editor.reasons:
        return ConfigChange(diff="")
    lines = difflib.unified_diff(
        to_yaml(config).splitlines(),
        to_yaml(new).splitlines(),
        "the configuration of this run",
        "what to try next",
        n=2,
        lineterm="",
    )
    return ConfigChange(diff="\n".join(lines), reasons=tuple(editor.reasons))


def _apply(editor: _Editor, finding: Finding) -> None:
    """Make the changes that are a part of the finding's advice."""
    kind, evidence = finding.kind, finding.evidence
    if kind in ("nan", "loss_scale", "underflow"):
        editor.to_bf16(finding)
    if kind == "policy_collapse":
        editor.change(_ENTROPY, finding, _scaled(2.0, least=_LEAST_BONUS))
    if kind == "divergence" and "first" in evidence:
        editor.change(_LR, finding, _scaled(0.1))
        editor.warm_up(finding)
    elif kind in ("nan", "divergence", "policy_collapse"):
        editor.change(_LR, finding, _scaled(0.5))
    # One spike that is over by itself needs nothing.
    is_lasting = finding.is_open or finding.repeats
    if kind in ("nan", "divergence", "exploding_grad") or (kind == "spike" and is_lasting):
        editor.change(_CLIP, finding, _clipped, add=_CLIP_AT)
    if kind == "lr_problem" and "level" in evidence:
        # The variant of a rate that is too high.
        editor.change(_LR, finding, _scaled(1 / 3))
    if kind == "lr_too_small" and finding.severity != INFO:
        # An info is a usual rate: there it may be anything else.
        editor.change(_LR, finding, _scaled(10.0, least=_LEAST_LR))
    if kind == "overfit":
        editor.change(_STEPS, finding, _ending_at(evidence.get("best_step")))
    if kind == "data_starvation":
        editor.change(_WORKERS, finding, _more_workers)
    if kind == "reward_hacking" and "kl" in finding.metric.lower():
        # Long completions have no setting that every trainer knows.
        editor.change(_KL, finding, _scaled(2.0, least=_LEAST_BONUS))
    if kind == "data_repeated" and "alike_pct" in evidence:
        # What is learnt by heart in any order needs more data, which is no setting.
        editor.change(_SHUFFLE, finding, lambda value: True if value is False else None, any_of=True)


_NewValue = Callable[[Any], Any]
"""Returns the new value of a setting; None if it stays as it is."""


def _scaled(factor: float, *, least: float = 0.0) -> _NewValue:
    def new(value: Any) -> float | None:
        number = as_number(value)
        if number is None or number < 0 or (number == 0 and not least):
            return None
        return max(float(f"{number * factor:.3g}"), least)

    return new


def _clipped(value: Any) -> float | None:
    number = as_number(value)
    return None if number is not None and 0 < number <= _CLIP_AT else _CLIP_AT


def _ending_at(step: float | None) -> _NewValue:
    def new(value: Any) -> int | None:
        number = as_number(value)
        return int(step) if number is not None and step is not None and 0 < step < number else None

    return new


def _more_workers(value: Any) -> int | None:
    number = as_number(value)
    if number is None or not 0 <= number <= 16:
        return None
    return 4 if number < 2 else int(2 * number)


class _Editor:
    """Changes a configuration in place, each setting at most once."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._done: set[tuple[str, ...]] = set()
        self.reasons: list[str] = []

    def change(
        self,
        names: tuple[str, ...],
        finding: Finding,
        new: _NewValue,
        *,
        add: float | None = None,
        any_of: bool = False,
    ) -> None:
        """Change the first of these settings, with `any_of` the first that `new` changes.

        Without one, `add` is put next to the learning rate, where trainers have it.
        """
        place = self._place(names, new if any_of else lambda _: True)
        after = self._place(_LR) if place is None and add is not None else None
        value = new(place[0][place[1]]) if place is not None else None
        if names in self._done or (value is None and after is None):
            return
        self._done.add(names)
        if place is not None:
            where, key = place
            self._because(f"{key}: {setting_text(where[key])} → {setting_text(value)}", finding)
            where[key] = value
        elif after is not None:
            where, key = after
            items = list(where.items())
            at = list(where).index(key) + 1
            where.clear()
            where.update([*items[:at], (names[0], add), *items[at:]])
            self._because(
                f"{names[0]}: {setting_text(add)}, new here: check what your trainer calls it", finding
            )

    def warm_up(self, finding: Finding) -> None:
        place = self._place(_STEPS)
        steps = None if place is None else as_number(place[0][place[1]])
        wanted = max(_MIN_WARMUP, int(steps * 0.05)) if steps is not None else _MIN_WARMUP
        if steps is not None and wanted > steps / 4:
            wanted = max(1, int(steps / 10))

        def new(value: Any) -> int | None:
            number = as_number(value)
            return wanted if number is not None and number < wanted else None

        self.change(_WARMUP, finding, new, add=wanted)

    def to_bf16(self, finding: Finding) -> None:
        self.change(_DTYPE, finding, lambda value: _BF16.get(str(value).lower()), any_of=True)
        flag = self._place(("fp16",))
        if _DTYPE not in self._done and flag is not None and flag[0]["fp16"] is True:
            self._done.add(_DTYPE)
            flag[0].update(fp16=False, bf16=True)
            self._because("fp16: true → false, bf16: true", finding)

    def _because(self, what: str, finding: Finding) -> None:
        title = title_of(finding)
        self.reasons.append(f"{what} ({title.lower()} at step {finding.start_step:,})")

    def _place(
        self, names: tuple[str, ...], wanted: _NewValue = lambda _: True
    ) -> tuple[dict[str, Any], str] | None:
        """Return where the first of these settings is that has a value; outer ones before inner ones."""
        found = list(_places(self._config))
        for name in names:
            for where, key in found:
                value = where[key]
                if (
                    key == name
                    and value is not None
                    and not isinstance(value, (dict, list))
                    and wanted(value)
                ):
                    return where, key
        return None


def _places(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
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
