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
_KINDS: Final = ("min", "max", "mean", "last", "copy", "none", "first", "best")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A script's definition of a metric; a name that ends in `*` is a prefix."""

    name: str
    step_metric: str | None = None
    step_sync: bool | None = None
    hidden: bool | None = None
    summary: tuple[str, ...] = ()
    goal: str | None = None


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

    def __init__(self) -> None:
        # Attributes are summary values, so internal ones bypass `__setattr__`.
        own: dict[str, Any] = {"_values": {}, "_metrics": {}, "_kinds": {}, "_means": {}}
        for name, value in {**own, "_device": DeviceScalars(), "_waiting": deque()}.items():
            object.__setattr__(self, name, value)

    def define(self, metric: Metric) -> None:
        """Apply a metric's definition from now on."""
        self._metrics[metric.name] = metric
        self._kinds.clear()

    def take(self, row: Mapping[str, Any]) -> None:
        """Update with a logged row. A number on a device is not waited for: it counts once it has arrived."""
        self._settle()
        for name, value in row.items():
            kind = type(value)
            if kind in _PLAIN:
                self._put(name, value)
            elif kind.__module__ == "torch":
                taken = self._device.take(value)
                if isinstance(taken, PendingScalar):
                    self._waiting.append((name, taken))
                else:
                    self._put_any(name, taken)
            elif kind.__module__ == "numpy" and hasattr(value, "tolist"):
                self._put_any(name, value.item() if value.size == 1 else value.tolist())
            else:
                self._put_any(name, value)

    def as_dict(self) -> dict[str, Any]:
        """Return a copy."""
        self._settle(_WAIT_S)
        return {
            name: dict(value) if isinstance(value, dict) else value for name, value in [*self._values.items()]
        }

    def __getitem__(self, name: str) -> Any:
        self._settle(_WAIT_S)
        if name in self._values:
            return self._values[name]
        return self._inside(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[str(name)] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(f"the summary has no {name!r}") from error

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, holds the values only, not those still on their way from a device.
        return _summary_of, (self.as_dict(),)

    def _inside(self, name: str) -> dict[str, Any]:
        """Return what was logged as a dictionary of that name and is kept under `name/…`."""
        found = {
            path[len(name) + 1 :]: value
            for path, value in [*self._values.items()]
            if path.startswith(f"{name}/")
        }
        if not found:
            raise KeyError(name)
        nested: dict[str, Any] = {}
        for path, value in found.items():
            first, _, rest = path.partition("/")
            nested[first] = self._inside(f"{name}/{first}") if rest else value
        return nested

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

    def _put_any(self, name: str, value: Any) -> None:
        if type(value) in _PLAIN:
            self._put(name, value)
        elif isinstance(value, (list, tuple)) and all(type(item) in _PLAIN for item in value):
            self._values[name] = list(value)

    def _put(self, name: str, value: Any) -> None:
        if name not in self._kinds:
            self._kinds[name] = self._kinds_of(name)
        kinds = self._kinds[name]
        if kinds is None:
            self._values[name] = value
            return
        kept = self._values.get(name)
        kept = kept if isinstance(kept, dict) else {}
        for kind in kinds:
            kept[kind] = self._summed(name, kind, kept.get(kind), value)
        if kinds:
            self._values[name] = kept

    def _kinds_of(self, name: str) -> tuple[str, ...] | None:
        """Return the kinds of summary of a metric; None for its last value, the default."""
        metric = self._metric_of(name)
        if metric is None or not metric.summary or metric.summary == ("copy",):
            return None
        return () if "none" in metric.summary else metric.summary

    def _metric_of(self, name: str) -> Metric | None:
        if name in self._metrics:
            return self._metrics[name]  # type: ignore[no-any-return]
        fitting = [
            metric
            for pattern, metric in self._metrics.items()
            if pattern.endswith("*") and name.startswith(pattern[:-1])
        ]
        return max(fitting, key=lambda metric: len(metric.name), default=None)

    def _summed(self, name: str, kind: str, kept: Any, value: Any) -> Any:
        if kind in ("last", "copy") or isinstance(value, str):
            return value
        if kind == "mean":
            # NaN is left out, or the mean would stay NaN.
            if value == value:
                count, total = self._means.get(name, (0, 0.0))
                self._means[name] = (count + 1, total + value)
                return (total + value) / (count + 1)
            return kept
        if kept is None or (kind != "first" and kept != kept):
            return value
        if kind == "first" or value != value:
            return kept
        highest = kind == "max" or (kind == "best" and self._is_maximised(name))
        return max(kept, value) if highest else min(kept, value)

    def _is_maximised(self, name: str) -> bool:
        metric = self._metric_of(name)
        return metric is not None and str(metric.goal).lower().startswith("max")


def _summary_of(values: Mapping[str, Any]) -> Summary:
    summary = Summary()
    summary.update(values)
    return summary
