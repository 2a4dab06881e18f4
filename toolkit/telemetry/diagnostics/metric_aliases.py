"""Finds the loss, gradient norm and other signals in a record under the names that frameworks give them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeGuard

from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.metrics import TRAIN_LOSSES, VAL_LOSSES
from toolkit.telemetry.runfolder.records import EPOCH, EVAL, NON_FINITE, Record

LOSS: Final = "loss"
VAL_LOSS: Final = "val_loss"
GRAD_NORM: Final = "grad_norm"
LR: Final = "lr"
STEP_TIME: Final = "step_time_s"
EPOCH_TIME: Final = "epoch_time_s"
DATA_TIME: Final = "data_time_s"
RATE: Final = "rate"
"""Samples, tokens or iterations a second: only compared with itself."""
ELAPSED: Final = "elapsed_s"
"""Seconds on any clock, in logs of other tools; our own records have a step time."""
GPU_UTIL: Final = "gpu_util_pct"
RSS: Final = "rss_mib"
GPU_MEMORY: Final = "gpu_memory_mib"
LOSS_SCALE: Final = "loss_scale"
REWARD: Final = "reward"
OPPONENT: Final = "opponent_loss"
"""The loss of one of several models that learn against each other."""
KL: Final = "kl"
"""The divergence of the policy from its reference, not from the policy of the step before."""
COMPLETION_LENGTH: Final = "completion_length"
ENTROPY: Final = "entropy"
LORA_B: Final = "lora_b_norm"
"""The norm of the gradients, or of the weights, of all B matrices."""
ZERO_GRADS: Final = "zero_grads"
"""The share of gradients that are exactly zero."""

_NAMES: Final = {
    GRAD_NORM: "grad_norm train/grad_norm gradient_norm",
    LR: "lr learning_rate train/learning_rate train/lr lr/pg0 lr/unet lr-AdamW lr-Adam lr-SGD",
    STEP_TIME: "sec_per_step step_time_s step_time iter_time dt",
    EPOCH_TIME: "epoch_time_s epoch_time",
    DATA_TIME: "data_time_s data_time data_wait_s ledger/data_wait",
    RATE: (
        "samples_per_sec tokens_per_sec iters_per_sec iters_per_sec_avg iterations_per_second it_per_sec "
        "tokens_per_second tok_per_sec throughput train_speed(iter/s) samples_per_second "
        "train_samples_per_second train/samples_per_second"
    ),
    ELAPSED: "elapsed_s wall_time time/time_elapsed",
    GPU_UTIL: "gpu_util gpu_util_pct",
    RSS: "cpu_mem_rss_mb rss_mib",
    GPU_MEMORY: "gpu_mem_allocated gpu_mem_mib gpu_mem_gib",
    LOSS_SCALE: "loss_scale grad_scale",
    # trl, verl, OpenRLHF, Stable-Baselines3, CleanRL
    REWARD: (
        "reward rewards/mean train/reward mean_reward objective/scores objective/rlhf_reward "
        "env/reward_mean ppo/mean_scores critic/rewards/mean critic/score/mean rollout/ep_rew_mean "
        "ep_rew_mean eval/mean_reward episode_reward train/episode_reward mean_episode_reward episode_return "
        "train/episode_return mean_episode_return episodic_return charts/episodic_return"
    ),
    KL: "kl train/kl objective/kl actor/kl_loss",
    COMPLETION_LENGTH: (
        "completions/mean_length completion_length train/completion_length train/completions/mean_length "
        "response_length/mean response_length"
    ),
    ENTROPY: "entropy train/entropy policy/entropy policy/entropy_avg objective/entropy actor/entropy",
    LORA_B: (
        "lora_B_grad_norm lora_b_grad_norm grad_norm/lora_B grad_norm/lora_b lora_B_norm lora_b_norm "
        "weight_norm/lora_B"
    ),
    ZERO_GRADS: "zero_grad_share zero_grad_fraction grads/zero_share",
}
# If a record has several names of a signal, the first one is used.
_SIGNAL_OF: Final[dict[str, str]] = {
    **dict.fromkeys(TRAIN_LOSSES, LOSS),
    **dict.fromkeys(VAL_LOSSES, VAL_LOSS),
    **{name: signal for signal, names in _NAMES.items() for name in names.split()},
    "Policy/Learning Rate": LR,
}

_A_RATE: Final = re.compile(
    r"(?:\w+/)?(?:lr|learning_rate)(?:[-_/]?(?:pg|group|param_group)?[-_]?\d+|[-/]\w+(?:[-/]\w+)*)?"
)
"""Learning rates of groups of parameters: `lr_1`, `lr/unet`, `lr-AdamW/pg1`, `train/lr_group2`."""
_NO_RATE: Final = re.compile("scale|mult|factor|momentum|beta|decay")
_MODELS: Final = "d|g|disc|dis|discriminator|gen|generator|critic|adv|adversarial"
_AN_OPPONENT: Final = re.compile(
    rf"(?:.*[/_.])?(?:(?:{_MODELS})[/_.]?loss|loss[/_.]?(?:{_MODELS}))(?:[/_.].*)?", re.IGNORECASE
)
"""Losses of a GAN: `d_loss`, `loss_G`, `train/disc_loss`, `loss/g/total`."""

_EXTREME_OF: Final[dict[str, str]] = {
    f"{name}_max": signal for name, signal in _SIGNAL_OF.items() if signal == GRAD_NORM
}
"""The largest of the steps that were folded into a record: where a record has it, it counts instead of the last one.
A norm that explodes between two records is gone by the next, and one that vanishes has no large one."""


def _from_gib(value: float, _: Record) -> float:
    return 1024.0 * value


def _of_one_step(value: float, record: Record) -> float:
    """A sum over the record's own step and those that were folded into it."""
    return value / (1 + folded_into(record))


def folded_into(record: Record) -> int:
    """Return how many steps have no record of their own but this one."""
    folded = record.get("steps_folded", 0)
    return folded if type(folded) is int and folded > 0 else 0


_CONVERSIONS: Final[dict[str, Callable[[float, Record], float]]] = {
    "gpu_mem_allocated": _from_gib,
    "gpu_mem_gib": _from_gib,
    "ledger/data_wait": _of_one_step,
}
"""How a field is converted to the unit of its signal."""


_NOT_THE_LOOPS_LOSS: Final = frozenset({EVAL, EPOCH})
"""Events whose loss is a mean over an epoch or over other data, not a point of the training curve."""

FARTHEST: Final = 2**53
"""Larger steps, sessions and ranks are invalid."""
_MOST_SHAPES: Final = 256
_LARGEST: Final = 1e308
"""The largest integer that a float can hold."""


class Shape:
    """What records with the same fields have in common; a run has few shapes, and many records of each."""

    __slots__ = ("fields", "has_non_finite", "has_rank", "plan", "rates")

    def __init__(self, names: tuple[str, ...]) -> None:
        extremes = {signal: name for name in names if (signal := _EXTREME_OF.get(name)) is not None}
        signals = {name: signal for signal, name in extremes.items()}
        for name in names:
            if (signal := _signal_in_record(name)) is not None and signal not in extremes:
                signals[name] = signal
        self.fields = tuple((name, signal, _CONVERSIONS.get(name)) for name, signal in signals.items())[::-1]
        """From the last to the first: of several with the same signal the first one counts."""
        rates = tuple(name for name, signal in signals.items() if signal == LR)
        self.rates = rates if len(rates) > 1 else ()
        """Where there are several groups of parameters, the highest of their rates says whether anything is learnt."""
        self.has_non_finite = NON_FINITE in names
        self.has_rank = "rank" in names
        self.plan: Any = None
        """Detectors for such a record of rank 0 if every signal is a number; set by the examiner."""


_NO_FIELDS: Final = Shape(())


class Row:
    """One record, as detectors see it."""

    __slots__ = ("_shapes", "event", "rank", "record", "shape", "step", "values")

    def __init__(self) -> None:
        self.event = ""
        self.step = 0
        self.rank = 0
        self.values: dict[str, float] = {}
        self.record: Record = {}
        self.shape = _NO_FIELDS
        self._shapes: dict[tuple[str, ...], Shape] = {}

    def forget_plans(self) -> None:
        """Forget which detectors read which records."""
        for shape in self._shapes.values():
            shape.plan = None

    def read(self, record: Record, last_step: int) -> None:
        """Load `record`; without its own step it belongs to `last_step`."""
        names = tuple(record)
        shape = self._shapes.get(names)
        if shape is None:
            shape = Shape(names)
            if len(self._shapes) < _MOST_SHAPES:
                self._shapes[names] = shape
        self.shape = shape
        if shape.has_non_finite:
            record = with_non_finite(record)
        self.record = record
        event = record.get("event")
        self.event = event if type(event) is str else ""
        step = record.get("global_step")
        if type(step) is int and -FARTHEST < step < FARTHEST:
            self.step = step
        elif type(step) is float and -FARTHEST < step < FARTHEST:
            self.step = int(step)
        else:
            self.step = last_step
        self.rank = 0
        if shape.has_rank:
            rank = record["rank"]
            self.rank = rank if type(rank) is int and -FARTHEST < rank < FARTHEST else 0
        values: dict[str, float] = {}
        for name, signal, convert in shape.fields:
            value = record[name]
            if type(value) is not float:
                if type(value) is not int or not -_LARGEST < value < _LARGEST:
                    continue
                value = float(value)
            values[signal] = value if convert is None else convert(value, record)
        if shape.rates:
            rates = [record[name] for name in shape.rates if _is_number(record[name])]
            if rates:
                values[LR] = float(max(rates))
        if self.event in _NOT_THE_LOOPS_LOSS:
            values.pop(LOSS, None)
        self.values = values

    @property
    def time(self) -> float | None:
        """When it was logged, in seconds of any clock it has; None if unknown."""
        return _time_of(self.record)


def name_of(signal: str, record: Record) -> str:
    """Return the name of `signal` in `record`; the signal's own name if it has none."""
    return next(
        (name for name in record if _signal_in_record(name) == signal and _is_number(record[name])), signal
    )


def _signal_in_record(name: str) -> str | None:
    """Return the signal that detectors read from this field."""
    signal = _SIGNAL_OF.get(name)
    if signal is None and _A_RATE.fullmatch(name) and not _NO_RATE.search(name):
        return LR
    return OPPONENT if signal is None and _AN_OPPONENT.fullmatch(name) else signal


def signal_of(name: str) -> str | None:
    """Return the signal with this field name; None for any other metric."""
    return _SIGNAL_OF.get(name)


_ONE_NAME: Final = {LOSS: "train_loss", VAL_LOSS: "val_loss", GRAD_NORM: "grad_norm", LR: "lr"}


def metric_key(name: str) -> str:
    """Return a name that is the same for all names of a quantity: `eval/loss` and `val_loss` are `val_loss`.

    Of other metrics, names that differ only in capitals and between words are one. Signals whose names
    measure different things, such as samples and tokens a second, are not joined.
    """
    return _ONE_NAME.get(_SIGNAL_OF.get(name, "")) or "_".join(re.split(r"[/._ -]+", name)).lower() or name


def number_in(record: Record, name: str) -> float | None:
    """Return the number in field `name` of `record`; None if it is missing or too large for a float."""
    value = record.get(name)
    return float(value) if _is_number(value) else None


def _time_of(record: Record) -> float | None:
    for name in ("time", "elapsed", "elapsed_s", "t_s"):
        value = number_in(record, name)
        if value is not None:
            return value
    return None


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) is float or (type(value) is int and -_LARGEST < value < _LARGEST)
