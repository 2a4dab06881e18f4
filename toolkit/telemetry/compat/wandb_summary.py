"""One value for each metric of a run, as W&B sums it up: the last, or the lowest, highest, first or mean."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.compat.stand_ins import say_once
from toolkit.telemetry.records.device_scalars import DeviceScalars, PendingScalar

_PLAIN: Final = frozenset({int, float, bool, str})
_WAIT_S: Final = 1.0
"""How long somebody who reads a summary waits for what a device has yet to deliver; who logs does not wait."""
_KINDS: Final = ("min", "max", "mean", "last", "copy", "none", "first", "best")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What a script says of a metric; a name that ends in `*` stands for all that begin so."""

    name: str
    step_metric: str | None = None
    step_sync: bool | None = None
    hidden: bool | None = None
    summary: tuple[str, ...] = ()
    goal: str | None = None


def summary_kinds(given: Any) -> tuple[str, ...]:
    """Return which values stand for a metric; a word that is none of W&B's is said once and left out."""
    text = ",".join(map(str, given)) if isinstance(given, (list, tuple)) else str(given or "")
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in _KINDS:
            say_once(f"define_metric(summary={word!r})", f"is none of {', '.join(_KINDS)}")
    return tuple(word for word in words if word in _KINDS)


class Summary(MutableMapping[str, Any]):
    """The summary of a run, by item or by attribute; a value that a script sets stands until the metric is logged."""

    _values: dict[str, Any]

    def __init__(self) -> None:
        # Attributes are values here, so its own go around that.
        own: dict[str, Any] = {"_values": {}, "_metrics": {}, "_kinds": {}, "_means": {}}
        for name, value in {**own, "_device": DeviceScalars(), "_waiting": deque()}.items():
            object.__setattr__(self, name, value)

    def define(self, metric: Metric) -> None:
        """Have a metric summed up as it says from now on."""
        self._metrics[metric.name] = metric
        self._kinds.clear()

    def take(self, row: Mapping[str, Any]) -> None:
        """Sum up what was logged. A number on a device is waited for by nobody: it counts once it is there."""
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
        # A copy, in this process or another, is values alone: what is on its way from a device stays with this one.
        return _summary_of, (self.as_dict(),)

    def _inside(self, name: str) -> dict[str, Any]:
        """Return what was logged as a dictionary of that name, and is kept under `name/…`."""
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
        """Sum up what has arrived from devices, waiting for it at most so long."""
        waiting = self._waiting
        until = time.monotonic() + wait_s if waiting else 0.0
        # In the order they were logged, for the last one is to stay.
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
        """Return what is kept of a metric, by name; None for one of which nothing was said: its last value."""
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
            # NaN stays out of it, or it would be all that is left.
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
