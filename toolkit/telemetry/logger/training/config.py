"""The configuration of a training job, with OneLogger's keys; each value may be a function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.core.checks import (
    Check,
    OptionsError,
    boolean,
    not_blank,
    number,
    one_of,
    optional,
    unknown,
    whole,
    wrong,
)
from toolkit.telemetry.core.fields import option, options_of
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.training.sums import amount

SYNC: Final = "sync"
ASYNC: Final = "async"

_ALIAS: Final = "_or_fn"
"""OneLogger's spelling of a key whose value may be a function; here every value may be."""
_ELSEWHERE: Final = ("error_handling_strategy", "logger_config", "enable_for_current_rank")
"""Keys of OneLogger's that change nothing: here the `telemetry:` block has such settings."""


class ConfigError(OptionsError):
    """The caller's configuration is wrong: the message names the key, its value and what is allowed."""


def _tags(key: str, value: Any) -> str | tuple[str, ...]:
    tags = (value,) if isinstance(value, str) else value
    is_list = isinstance(tags, (list, tuple)) and len(tags) > 0
    if not is_list or not all(isinstance(tag, str) and tag.strip() for tag in tags):
        raise wrong(key, value, _TAGS.allowed)
    return value if isinstance(value, str) else tuple(tags)


_TAGS: Final = Check(_tags, "a text that is not empty, or a list of such")


def _metadata(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name.strip() for name in value):
        raise wrong(key, value, _METADATA.allowed)
    return dict(value)


_METADATA: Final[Check[Mapping[str, Any]]] = Check(_metadata, "a mapping whose keys are texts")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """What is known about the job now."""

    application_name: str | None = option(None, "Name of the application.", optional(not_blank))
    perf_tag: str | tuple[str, ...] | None = option(
        None,
        "Names jobs that should be equally fast: same work, code, settings and machines.",
        optional(_TAGS),
    )
    session_tag: str | None = option(
        None, "Names jobs that do one task together, each continuing the last one.", optional(not_blank)
    )
    is_baseline_run: bool = option(False, "The run is one to compare others with.", boolean)
    custom_metadata: Mapping[str, Any] | None = option(
        None, "Anything else about the job.", optional(_METADATA)
    )
    world_size: int | None = option(
        None, "Processes, one per GPU; default: the launcher's.", optional(whole(1))
    )
    global_batch_size: int | None = option(
        None, "Samples per iteration, over all processes.", optional(whole(1))
    )
    micro_batch_size: int | None = option(None, "Samples per forward pass of a process.", optional(whole(1)))
    seq_length: int | None = option(None, "Tokens per sample.", optional(whole(1)))
    flops_per_sample: float | None = option(
        None, "Floating-point operations per sample, forward and backward.", optional(number(above=0))
    )
    train_iterations_target: int | None = option(None, "Iterations planned.", optional(whole(1)))
    train_samples_target: int | None = option(None, "Samples planned.", optional(whole(1)))
    log_every_n_train_iterations: int = option(
        50, "Iterations from one `training_metrics_update` to the next.", whole(1)
    )
    is_log_throughput_enabled: bool | None = option(
        None,
        "Put operations per second into events; default: once `flops_per_sample` is known.",
        optional(boolean),
    )
    save_checkpoint_strategy: str = option(SYNC, "How checkpoints are saved.", one_of(SYNC, ASYNC))
    is_train_iterations_enabled: bool = option(True, "Write `training_metrics_update` events.", boolean)
    is_validation_iterations_enabled: bool = option(True, "Write events about validation.", boolean)
    is_test_iterations_enabled: bool = option(True, "Write events about testing.", boolean)
    is_save_checkpoint_enabled: bool = option(True, "Write events about checkpoints.", boolean)
    summary_data_schema_version: str = option(
        "1.0.0", "Version of the data's schema that a summary of the run refers to.", not_blank
    )

    @property
    def logs_throughput(self) -> bool:
        """Whether events contain operations per second."""
        return self.flops_per_sample is not None and self.is_log_throughput_enabled is not False

    @property
    def flops(self) -> float:
        """Operations per sample, where they are wanted."""
        return amount(self.flops_per_sample if self.logs_throughput else None)


class ConfigSource:
    """The values and functions that the caller has given so far; `now` evaluates them."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._given: dict[str, Any] = {}
        self.sizes_change = False
        """Whether a size of an iteration is a function, which is then called for each iteration."""

    def take(self, given: Mapping[str, Any]) -> None:
        """Add to what was given, or replace it; nothing of it if anything is wrong.

        Raises:
            ConfigError: a key or a value is wrong; the message names it and what is allowed.
        """
        self._given.update(_parsed(given))
        self.sizes_change = any(callable(self._given.get(name)) for name in _OF_AN_ITERATION)

    def now(self) -> TrainingConfig:
        """Return what is known now."""
        return self._evaluated(self._given)

    def of(self, given: Mapping[str, Any]) -> TrainingConfig:
        """Return what `given` says by itself; a wrong value in it is reported."""
        stated = {name: value for name, value in given.items() if value is not None}
        return self._evaluated(self._guard.call("reading the targets", _parsed, stated) or {})

    def sizes_now(self) -> TrainingConfig:
        """Return what an iteration amounts to now, without calling any other function."""
        return self._evaluated({name: self._given[name] for name in _OF_AN_ITERATION & self._given.keys()})

    def _evaluated(self, given: Mapping[str, Any]) -> TrainingConfig:
        """Return the configuration; a function that fails or returns a wrong value is reported once and left out."""
        found: dict[str, Any] = {}
        for name, value in given.items():
            with self._guard.catch(f"calling the function given as {name}"):
                found[name] = _checked(name, value()) if callable(value) else value
        return TrainingConfig(**found)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was given yet."""
        return not self._given


_OF_AN_ITERATION: Final = {
    *("global_batch_size", "seq_length", "flops_per_sample", "is_log_throughput_enabled"),
}
_OPTIONS: Final = options_of(TrainingConfig)


def _parsed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return values and functions by our names. Raises ConfigError if a key or a value is wrong."""
    found: dict[str, Any] = {}
    for spelling, value in _flat(given).items():
        name = spelling.removesuffix(_ALIAS)
        if name not in _OPTIONS:
            raise ConfigError(str(unknown(spelling[:100], value, _OPTIONS)))
        if name in found:
            raise ConfigError(f"{name} is given twice, as {name!r} and as {name + _ALIAS!r}; once is enough")
        found[name] = value if callable(value) else _checked(name, value)
    return found


def _checked(name: str, value: Any) -> Any:
    try:
        return _OPTIONS[name].check(name, value)
    except OptionsError as error:
        raise ConfigError(f"{error}, or a function that returns it") from None


def _flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given and what is in OneLogger's `telemetry_config`, without keys that have no meaning here."""
    found = {name: value for name, value in given.items() if name not in _ELSEWHERE}
    within = found.pop("telemetry_config", None)
    # One of pydantic's objects, as OneLogger's are, or a mapping.
    within = {name: getattr(within, name) for name in getattr(type(within), "model_fields", ())} or within
    if not isinstance(within, Mapping | None):
        allowed = "OneLogger's TrainingTelemetryConfig, or a mapping of its keys"
        raise ConfigError(str(wrong("telemetry_config", within, allowed)))
    both = [part["custom_metadata"] for part in (found, within or {}) if part.get("custom_metadata")]
    if len(both) == 2 and all(isinstance(part, Mapping) for part in both):
        found["custom_metadata"] = both[0] | both[1]
    return {**(within or {}), **found}
