"""What a made training is made with, and its learning rate at each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

CONSTANT, LINEAR, COSINE, WSD, STEPS, RESTARTS = "constant", "linear", "cosine", "wsd", "steps", "restarts"
SCHEDULES = (CONSTANT, LINEAR, COSINE, WSD, STEPS, RESTARTS)
_WSD_DECAY = 0.2
_RESTARTS = 3

Columns = dict[str, list[float]]
"""What a training logged: `step` and columns of the same length; `eval_step` and `val_loss`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One training. The second part is what a cause changes; with its defaults the training is without a fault."""

    family: str
    seed: int
    steps: int
    log_every: int = 1
    eval_every: int = 0
    """0: no evaluations."""
    logs: str = "mean"
    """Whether a record has the mean loss since the last record, or the loss of its own batch (`last`)."""
    batch: int = 16
    rows: int = 4096
    lr: float = 1e-3
    schedule: str = COSINE
    lowest: float = 0.0
    """The share of the learning rate at the end of the schedule."""
    warm_up: int = 0
    optimizer: str = "adamw"
    beta2: float = 0.999
    weight_decay: float = 0.0
    clip: float = 0.0
    """0: gradients are not clipped."""
    width: int = 32
    depth: int = 2
    noise: float = 0.1
    """Noise of the data, in units of the signal."""
    scale: float = 1.0
    """The unit of the loss."""
    order_seed: int = 0
    """Another order of the batches, with the same data and the same first weights."""

    lr_factor: float = 1.0
    jump_step: int | None = None
    jump: float = 1.0
    """The learning rate is multiplied by this from `jump_step` on, for `jump_for` steps."""
    jump_for: int = 0
    bad_steps: tuple[int, ...] = ()
    bad_size: float = 1.0
    """Inputs of these batches are multiplied."""
    long_steps: tuple[int, ...] = ()
    long_size: float = 1.0
    """Losses of these batches are sums over more values than others."""
    wrong_labels_from: int | None = None
    wrong_labels: float = 0.0
    """The share of labels that belong to another row, from a step on."""
    repeats_from: int | None = None
    """From this step on the loader gives the same batch."""
    other_data_from: int | None = None
    frozen: bool = False
    """Nearly all weights are not trained."""
    initial_scale: float = 1.0
    half_scale: float = 0.0
    """Gradients are kept in half precision, times this; it doubles, and overflow is not looked for."""
    half_doubles: int = 0
    state_lost_step: int | None = None
    broken_evals: tuple[int, ...] = ()
    slow_from: int | None = None
    slow_s: float = 0.0
    leak_mib: float = 0.0

    @classmethod
    def from_mapping(cls, found: Mapping[str, Any]) -> Settings:
        """Read what `to_mapping` gives."""
        known = {one.name for one in fields(cls)}
        values: dict[str, Any] = {
            name: tuple(of) if isinstance(of, list) else of for name, of in found.items()
        }
        return cls(**{name: of for name, of in values.items() if name in known})

    def to_mapping(self) -> dict[str, Any]:
        """Return what differs from the defaults."""
        plain = replace(_PLAIN, family="", seed=-1, steps=-1)
        return {
            name: list(of) if isinstance(of, tuple) else of
            for name, of in asdict(self).items()
            if of != getattr(plain, name)
        }

    def lr_at(self, step: int) -> float:
        """Return the learning rate of `step`, the first being 1."""
        rate = self.lr * self.lr_factor * self._share(step)
        begins = self.jump_step
        if begins is not None and begins <= step < begins + (self.jump_for or self.steps):
            rate *= self.jump
        return rate

    def _share(self, step: int) -> float:
        if step <= self.warm_up:
            return step / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        if self.schedule == LINEAR:
            falling = 1 - done
        elif self.schedule == COSINE:
            falling = (1 + math.cos(math.pi * done)) / 2
        elif self.schedule == RESTARTS:
            falling = (1 + math.cos(math.pi * (done * _RESTARTS % 1))) / 2
        elif self.schedule == WSD:
            falling = min(1.0, (1 - done) / _WSD_DECAY)
        elif self.schedule == STEPS:
            falling = 0.1 ** int(min(done, 0.999) * 3)
        else:
            falling = 1.0
        return self.lowest + (1 - self.lowest) * falling


_PLAIN = Settings(family="", seed=0, steps=0)
