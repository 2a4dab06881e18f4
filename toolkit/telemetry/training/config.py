"""What a training job says of itself: OneLogger's configuration, each part of it a value or a function."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Final

from toolkit.core.guard import Guard
from toolkit.telemetry.options import OptionsError
from toolkit.telemetry.training.windows import Sizes

SYNC: Final = "sync"
ASYNC: Final = "async"

_ALIAS: Final = "_or_fn"
"""OneLogger's spelling of a key whose value may be a function; here every value may be."""


class ConfigError(OptionsError):
    """The caller's configuration is wrong: the message names the key, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """What is known of the job now."""

    application_name: str | None = None
    perf_tag: str | tuple[str, ...] | None = None
    """Jobs of one tag do the same work with the same code, settings and machines: their speed can be compared."""
    session_tag: str | None = None
    """Jobs of one tag together do one piece of work, each going on where the last one stopped."""
    is_baseline_run: bool = False
    custom_metadata: Mapping[str, Any] | None = None
    world_size: int | None = None
    """Processes, one a GPU; what the launcher says where it is not given."""
    global_batch_size: int | None = None
    """Samples that one iteration trains on, over all processes."""
    micro_batch_size: int | None = None
    seq_length: int | None = None
    """Tokens of a sample."""
    flops_per_sample: float | None = None
    """Floating-point operations that training on one sample takes, forwards and backwards."""
    train_iterations_target: int | None = None
    train_samples_target: int | None = None
    log_every_n_train_iterations: int = 50
    """Iterations from one `training_metrics_update` to the next."""
    is_log_throughput_enabled: bool | None = None
    """Whether events say how many operations a second were done; where it is not said, once `flops_per_sample` is."""
    save_checkpoint_strategy: str = SYNC
    is_train_iterations_enabled: bool = True
    """Whether there are `training_metrics_update` events; the next three say it of theirs."""
    is_validation_iterations_enabled: bool = True
    is_test_iterations_enabled: bool = True
    is_save_checkpoint_enabled: bool = True
    summary_data_schema_version: str = "1.0.0"
    """Which version of the data's schema a run was summed up by."""

    @property
    def logs_throughput(self) -> bool:
        """Whether events tell of operations."""
        enabled = self.is_log_throughput_enabled
        return self.flops_per_sample is not None and enabled is not False

    @property
    def sizes(self) -> Sizes:
        """What one iteration amounts to."""
        return Sizes(
            batch=self.global_batch_size,
            tokens_per_sample=self.seq_length,
            flops_per_sample=self.flops_per_sample if self.logs_throughput else None,
        )


class ConfigSource:
    """What the caller gave so far, values and functions; `now` is what they come to."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._values: dict[str, Any] = {}
        self._functions: dict[str, Callable[[], Any]] = {}
        self.sizes_change = False
        """Whether a function says what an iteration amounts to, so that each has to be asked for."""

    def take(self, given: Mapping[str, Any]) -> None:
        """Add to what was given, or replace it; all of it or, where something is wrong, nothing.

        Raises:
            ConfigError: a key or a value is wrong; the message names it and what is allowed.
        """
        values: dict[str, Any] = {}
        functions: dict[str, Callable[[], Any]] = {}
        for spelling, value in self._of_ours(given).items():
            name = _known(spelling, value)
            if name in values or name in functions:
                raise ConfigError(
                    f"{name} is given twice, as {name!r} and as {name + _ALIAS!r}; once is enough"
                )
            if callable(value):
                functions[name] = value
            else:
                values[name] = _CHECKS[name](name, value)
        for name in (*values, *functions):
            self._values.pop(name, None)
            self._functions.pop(name, None)
        self._values.update(values)
        self._functions.update(functions)
        self.sizes_change = not _OF_AN_ITERATION.isdisjoint(self._functions)

    def _of_ours(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was given without those keys of OneLogger's that something else takes the place of here.

        Raises:
            ConfigError: one of them asks for what is asked for elsewhere; the message says where.
        """
        found = dict(given)
        nested = found.pop("telemetry_config", None)
        if nested is not None:
            within = _fields_of("telemetry_config", nested)
            metadata = (found.pop("custom_metadata", None), within.pop("custom_metadata", None))
            if any(metadata):
                found["custom_metadata"] = _merged(*metadata)
            for name, value in within.items():
                if name in found:
                    raise ConfigError(
                        f"{name} is given twice, by itself and in telemetry_config; once is enough"
                    )
                found[name] = value
        for name, (is_so_anyway, instead) in _INSTEAD.items():
            if name in found and not is_so_anyway(found.pop(name), self._guard):
                raise ConfigError(f"{name} is {_shown(given.get(name))}: {instead}")
        return found

    def now(self) -> TrainingConfig:
        """Return what is known now. A function that fails, or returns nonsense, is said once and its field left out."""
        found = dict(self._values)
        for name, function in self._functions.items():
            with self._guard.catch(f"asking the function given as {name}"):
                found[name] = _CHECKS[name](name, function())
        return TrainingConfig(**found)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was given yet."""
        return not self._values and not self._functions

    def ask(self, name: str, given: Any) -> Any:
        """Return what `given`, a value or a function, comes to for the field `name`; None where it is of no use."""
        with self._guard.catch(f"reading {name}"):
            return _CHECKS[name](name, given() if callable(given) else given)
        return None

    def sizes_now(self) -> Sizes:
        """Return what an iteration amounts to now, without asking any other function."""
        found = {name: self._values[name] for name in _OF_AN_ITERATION if name in self._values}
        for name in _OF_AN_ITERATION & self._functions.keys():
            with self._guard.catch(f"asking the function given as {name}"):
                found[name] = _CHECKS[name](name, self._functions[name]())
        return TrainingConfig(**found).sizes


_OF_AN_ITERATION: Final = frozenset(
    {"global_batch_size", "seq_length", "flops_per_sample", "is_log_throughput_enabled"}
)


def _known(spelling: str, value: Any) -> str:
    name = spelling.removesuffix(_ALIAS)
    if name in _CHECKS:
        return name
    close = difflib.get_close_matches(name, _CHECKS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    raise ConfigError(
        f"{spelling[:100]} (with the value {_shown(value)}) is not part of a training configuration{hint} "
        f"Known: {', '.join(sorted(_CHECKS))}"
    )


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:
        # Python itself refuses to write out the longest of them.
        return f"an integer of {value.bit_length()} bits"
    return repr(value)[:200]


def _wrong(name: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"{name} is {_shown(value)}; it must be {allowed}, or a function that returns it")


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(name, value, "a text that is not empty")
    return value


def whole_number(value: Any) -> int | None:
    """Return `value` as an integer if it is one, of Python or numpy: a tensor's would have to be waited for."""
    if isinstance(value, bool):
        return None
    return int(value) if isinstance(value, Integral) else None


def _whole(name: str, value: Any) -> int:
    number = whole_number(value)
    if number is None or not 1 <= number < 2**63:
        raise _wrong(name, value, "a whole number from 1 on")
    return number


def _number(name: str, value: Any) -> float:
    # A comparison with NaN is never true.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise _wrong(name, value, "a number above 0")
    return float(value)


def _tags(name: str, value: Any) -> str | tuple[str, ...]:
    tags = (value,) if isinstance(value, str) else value
    if not isinstance(tags, (list, tuple)) or not tags:
        raise _wrong(name, value, "a text that is not empty, or a list of such")
    for tag in tags:
        if not isinstance(tag, str) or not tag.strip():
            raise _wrong(name, value, "a text that is not empty, or a list of such")
    return value if isinstance(value, str) else tuple(tags)


def _metadata(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key.strip() for key in value):
        raise _wrong(name, value, "a mapping whose keys are texts")
    return dict(value)


def _strategy(name: str, value: Any) -> str:
    # OneLogger's own constants are texts too.
    for strategy in (SYNC, ASYNC):
        if value == strategy:
            return strategy
    raise _wrong(name, value, f"{SYNC!r} or {ASYNC!r}")


def _or_none(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "application_name": _or_none(_text),
    "perf_tag": _or_none(_tags),
    "session_tag": _or_none(_text),
    "is_baseline_run": _boolean,
    "custom_metadata": _or_none(_metadata),
    "world_size": _or_none(_whole),
    "global_batch_size": _or_none(_whole),
    "micro_batch_size": _or_none(_whole),
    "seq_length": _or_none(_whole),
    "flops_per_sample": _or_none(_number),
    "train_iterations_target": _or_none(_whole),
    "train_samples_target": _or_none(_whole),
    "log_every_n_train_iterations": _whole,
    "is_log_throughput_enabled": _or_none(_boolean),
    "save_checkpoint_strategy": _strategy,
    "is_train_iterations_enabled": _boolean,
    "is_validation_iterations_enabled": _boolean,
    "is_test_iterations_enabled": _boolean,
    "is_save_checkpoint_enabled": _boolean,
    "summary_data_schema_version": _text,
}


def _fields_of(name: str, config: Any) -> dict[str, Any]:
    """Return the fields of a configuration object of OneLogger's, or of a mapping of its keys."""
    if isinstance(config, Mapping):
        return dict(config)
    # One of pydantic's, as OneLogger's are.
    fields = getattr(type(config), "model_fields", None)
    if not isinstance(fields, Mapping):
        raise _wrong(name, config, "OneLogger's TrainingTelemetryConfig, or a mapping of its keys")
    return {field: getattr(config, field) for field in fields}


def _merged(*parts: Any) -> Any:
    """Return the metadata of the application and of its training as one; what is no mapping is left to the check."""
    odd = [part for part in parts if part is not None and not isinstance(part, Mapping)]
    return odd[0] if odd else {key: value for part in parts if part for key, value in part.items()}


def _is_quiet(value: Any, guard: Guard) -> bool:
    strategy = getattr(value, "value", value)
    return strategy == "disable_quietly_and_report_metric_error" or guard.strict


_INSTEAD: Final[Mapping[str, tuple[Callable[[Any, Guard], bool], str]]] = {
    "enable_for_current_rank": (
        lambda value, _: value is True,
        "here `telemetry.enabled: false` switches a process off, and `telemetry.ranks` says which ranks write",
    ),
    "error_handling_strategy": (
        _is_quiet,
        "here nothing raises into the training; `telemetry.strict: true` has calls that make no sense raise",
    ),
    "logger_config": (
        lambda value, _: value is None,
        "here messages go to Python's logger 'toolkit.telemetry', whose level and handlers are set as any other's",
    ),
}
"""Keys of OneLogger's that are none of ours: whether a value asks for what is so anyway, and what to use instead."""
