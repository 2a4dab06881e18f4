"""A run's summary as in W&B: for each metric the last value, or the min, max, first or mean."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.compat.null_object import warn_once
from toolkit.telemetry.logger.records.device_scalars import DeviceScalars, PendingScalar

_PLAIN: Final = frozenset({int, float, bool, str})
_WAIT_S: Final = 1.0
"""How long reading a summary waits for values from a device; logging does not wait."""
_KINDS: Final = ("min", "max", "mean", "last", "copy", "none", "first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A script's definition of a metric; a name that ends in `*` is a prefix."""

    name: str
    step_metric: str | None = None
    summary: tuple[str, ...] = ()


def summary_kinds(given: Any) -> tuple[str, ...]:
    """Return the kinds of summary of a metric; an unknown kind warns once and is left out."""
    text = ",".join(map(str, given)) if isinstance(given, (list, tuple)) else str(given or "")
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in _KINDS:
            warn_once(f"define_metric(summary={word!r})", f"is not one of {', '.join(_KINDS)}")
    return tuple(word for word in words if word in _KINDS)


class Summary(MutableMapping[str, Any]):
    """The summary of a run, by item or attribute; a value that a script sets is kept until the metric is logged."""

    _values: dict[str, Any]
    _metrics: dict[str, Metric]
    _means: dict[str, tuple[int, float]]
    _device: DeviceScalars
    _waiting: deque[tuple[str, PendingScalar]]

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        # Attributes are summary values, so internal ones bypass `__setattr__`.
        self.__dict__.update(_values=dict(values or {}), _metrics={}, _means={})
        self.__dict__.update(_device=DeviceScalars(), _waiting=deque())

    def define(self, metric: Metric) -> None:
        """Apply a metric's definition from now on."""
        self._metrics[metric.name] = metric

    def add(self, row: Mapping[str, Any]) -> None:
        """Update with a logged row. A number on a device is not waited for: it counts once it has arrived."""
        self._settle()
        for name, value in row.items():
            if type(value).__module__ == "torch":
                value = self._device.take(value)
                if isinstance(value, PendingScalar):
                    self._waiting.append((name, value))
            elif type(value).__module__ == "numpy":
                value = value.item() if value.size == 1 else value.tolist()
            if type(value) in _PLAIN:
                self._put(name, value)
            elif isinstance(value, (list, tuple)) and all(type(item) in _PLAIN for item in value):
                self._values[name] = list(value)

    def as_dict(self) -> dict[str, Any]:
        """Return a copy."""
        self._settle(_WAIT_S)
        return {
            name: dict(value) if isinstance(value, dict) else value for name, value in [*self._values.items()]
        }

    def __getitem__(self, name: str) -> Any:
        self._settle(_WAIT_S)
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[str(name)] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and name in self:
            return self[name]
        raise AttributeError(f"the summary has no {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, holds the values only, not those still on their way from a device.
        return Summary, (self.as_dict(),)

    def _settle(self, wait_s: float = 0.0) -> None:
        """Add what has arrived from devices, waiting at most `wait_s` for it."""
        waiting = self._waiting
        until = time.monotonic() + wait_s if waiting else 0.0
        # In the order of logging, so that the last value is the last logged.
        while waiting:
            name, pending = waiting[0]
            number = pending.poll()
            if number is not None:
                waiting.popleft()
                self._put(name, number)
            elif time.monotonic() < until:
                time.sleep(0.002)
            else:
                return

    def _put(self, name: str, value: Any) -> None:
        metric = self._metric_of(name)
        if metric is None or metric.summary in ((), ("copy",)):
            self._values[name] = value
        elif "none" not in metric.summary:
            kept = self._values.get(name)
            kept = kept if isinstance(kept, dict) else {}
            for kind in metric.summary:
                kept[kind] = self._summed(name, kind, kept.get(kind), value)
            self._values[name] = kept

    def _metric_of(self, name: str) -> Metric | None:
        if name in self._metrics or not self._metrics:
            return self._metrics.get(name)
        prefixes = [key for key in self._metrics if key.endswith("*") and name.startswith(key[:-1])]
        return self._metrics[max(prefixes, key=len)] if prefixes else None

    def _summed(self, name: str, kind: str, kept: Any, value: Any) -> Any:
        if kind in ("last", "copy") or isinstance(value, str):
            return value
        # NaN is left out, or the result would stay NaN.
        if value != value or (kind == "first" and kept is not None):
            return kept
        if kind == "mean":
            count, total = self._means.get(name, (0, 0.0))
            self._means[name] = (count + 1, total + value)
            return (total + value) / (count + 1)
        return value if kept is None else max(kept, value) if kind == "max" else min(kept, value)
