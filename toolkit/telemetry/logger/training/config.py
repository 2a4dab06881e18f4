"""The configuration of a training job, with OneLogger's keys; each value may be a function."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    shown,
    unknown,
    whole,
    wrong,
)
from toolkit.telemetry.core.fields import option, options_of
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.training.sums import UNKNOWN, IterationSizes

SYNC: Final = "sync"
ASYNC: Final = "async"

_ALIAS: Final = "_or_fn"
"""OneLogger's spelling of a key whose value may be a function; here every value may be."""
_ELSEWHERE: Final = ("error_handling_strategy", "logger_config")
"""Keys of OneLogger's that change nothing: nothing raises here, and messages go to Python's own logging."""


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
        enabled = self.is_log_throughput_enabled
        return self.flops_per_sample is not None and enabled is not False

    @property
    def sizes(self) -> IterationSizes:
        """What one iteration amounts to."""
        flops = self.flops_per_sample if self.logs_throughput else None
        return IterationSizes(
            batch=self.global_batch_size or UNKNOWN,
            tokens_per_sample=self.seq_length or UNKNOWN,
            flops_per_sample=flops or UNKNOWN,
        )


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
        found: dict[str, Any] = {}
        for spelling, value in _of_ours(given).items():
            name = spelling.removesuffix(_ALIAS)
            if name not in _OPTIONS:
                raise ConfigError(str(unknown(spelling[:100], value, _OPTIONS)))
            if name in found:
                raise ConfigError(
                    f"{name} is given twice, as {name!r} and as {name + _ALIAS!r}; once is enough"
                )
            found[name] = value if callable(value) else _checked(name, value)
        self._given.update(found)
        self.sizes_change = any(callable(self._given.get(name)) for name in _OF_AN_ITERATION)

    def now(self, names: Collection[str] | None = None) -> TrainingConfig:
        """Return what is known now, of these names alone if any are given.

        A function that fails or returns a wrong value is reported once and left out.
        """
        found: dict[str, Any] = {}
        for name, value in self._given.items():
            if names is None or name in names:
                with self._guard.catch(f"calling the function given as {name}"):
                    found[name] = _checked(name, value()) if callable(value) else value
        return TrainingConfig(**found)

    def sizes_now(self) -> IterationSizes:
        """Return what an iteration amounts to now, without asking any other function."""
        return self.now(_OF_AN_ITERATION).sizes

    @property
    def is_empty(self) -> bool:
        """Whether nothing was given yet."""
        return not self._given

    def ask(self, name: str, given: Any) -> Any:
        """Return what `given`, a value or a function, gives for the field `name`; None if it is wrong."""
        with self._guard.catch(f"reading {name}"):
            return _checked(name, given() if callable(given) else given)
        return None


_OF_AN_ITERATION: Final = frozenset(
    {"global_batch_size", "seq_length", "flops_per_sample", "is_log_throughput_enabled"}
)
_OPTIONS: Final = options_of(TrainingConfig)


def _checked(name: str, value: Any) -> Any:
    try:
        return _OPTIONS[name].check(name, value)
    except OptionsError as error:
        raise ConfigError(f"{error}, or a function that returns it") from None


def _of_ours(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given, with what is in OneLogger's `telemetry_config` and without keys that we do not have.

    Raises:
        ConfigError: one of them asks for what is set elsewhere here; the message says where.
    """
    found = dict(given)
    within = _fields_of("telemetry_config", found.pop("telemetry_config", None))
    parts = [part.pop("custom_metadata", None) for part in (found, within)]
    if any(parts):
        odd = [part for part in parts if part is not None and not isinstance(part, Mapping)]
        found["custom_metadata"] = odd[0] if odd else {**(parts[0] or {}), **(parts[1] or {})}
    for name in found.keys() & within.keys():
        raise ConfigError(f"{name} is given twice, by itself and in telemetry_config; once is enough")
    for name in _ELSEWHERE:
        found.pop(name, None)
    is_enabled = found.pop("enable_for_current_rank", True)
    if is_enabled is not True:
        raise ConfigError(
            f"enable_for_current_rank is {shown(is_enabled)}: here `telemetry.enabled: false` switches a process off, "
            "and `telemetry.ranks` says which ranks write"
        )
    return found | within


def _fields_of(name: str, config: Any) -> dict[str, Any]:
    """Return the fields of a configuration object of OneLogger's, or of a mapping of its keys."""
    if config is None or isinstance(config, Mapping):
        return dict(config or {})
    # One of pydantic's, as OneLogger's are.
    fields = getattr(type(config), "model_fields", None)
    if not isinstance(fields, Mapping):
        allowed = "OneLogger's TrainingTelemetryConfig, or a mapping of its keys"
        raise ConfigError(str(wrong(name, config, allowed)))
    return {field: getattr(config, field) for field in fields}
