"""Whatever a caller hands over, as plain values that a record can hold."""

from __future__ import annotations

import datetime
import enum
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.runfolder.records import ENVELOPE, UNENCODABLE
from toolkit.telemetry.device_scalars import DeviceScalars, PendingScalar, Refusal
from toolkit.telemetry.guard import Guard

_MAX_DEPTH = 16
_MAX_FIELDS = 4_000
_MAX_ARRAY_ITEMS = 64
_PLAIN = frozenset({int, float, bool, str})
_RESERVED = frozenset(ENVELOPE)


class Values:
    """Turns callers' values into plain ones. Nothing a value does, however odd, comes out as an exception."""

    def __init__(self, guard: Guard, device_scalars: DeviceScalars) -> None:
        self._guard = guard
        self._device = device_scalars

    def fields(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, PendingScalar]]:
        """Return the plain fields of `given`, and those that a device has yet to deliver.

        Nested mappings become `outer/inner`; None is left out; what cannot be kept is named under `unencodable`.
        """
        plain: dict[str, Any] = {}
        pending: dict[str, PendingScalar] = {}
        notes: dict[str, str] = {}
        # Most fields are numbers, and most others are tensors: for these nothing is asked that need not be.
        odd: dict[str, Any] = {}
        for name, value in given.items():
            kind = type(value)
            if kind in _PLAIN and type(name) is str and name not in _RESERVED:
                plain[name] = value
            elif kind.__name__ == "Tensor" and kind.__module__ == "torch" and name not in _RESERVED:
                self._keep(name, self.one(value), plain, pending, notes)
            elif value is not None:
                odd[name] = value
        if odd:
            for name, value in self._flat(odd, "", 0, notes):
                self._keep(name, self.one(value), plain, pending, notes)
        if notes:
            plain[UNENCODABLE] = {**notes, **_mapping(plain.get(UNENCODABLE))}
        return plain, pending

    @staticmethod
    def _keep(
        name: str, taken: Any, plain: dict[str, Any], pending: dict[str, PendingScalar], notes: dict[str, str]
    ) -> None:
        if type(taken) is PendingScalar:
            pending[name] = taken
        elif type(taken) is Unencodable:
            notes[name] = taken.note
        elif taken is not None:
            plain[name] = taken

    def tree(self, value: Any) -> Any:
        """Return `value` with its structure kept, for a configuration; oddities become short notes."""
        return self._tree(value, 0, set())

    def one(self, value: Any) -> Any:
        """Return `value` plain, pending, `Unencodable`, or None for nothing."""
        result: Any = Unencodable(value)
        # The value's own code runs in here, and it may raise anything at all.
        with self._guard.watch("reading a value"):
            result = self._one(value)
        return result

    def _one(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or value is None:
            return value
        module = kind.__module__.partition(".")[0]
        if module == "torch" or hasattr(kind, "__torch_function__"):
            return self._tensor(value)
        if module == "numpy":
            return self._array(value)
        if isinstance(value, enum.Enum):
            return self._one(value.value)
        if isinstance(value, bool):
            return bool(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, os.PathLike):
            return str(os.fspath(value))
        if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
            return value.isoformat()
        if isinstance(value, datetime.timedelta):
            return value.total_seconds()
        if isinstance(value, (list, tuple, set, frozenset, Mapping)):
            return self._tree(value, 0, set())
        if hasattr(kind, "__float__"):
            return float(value)
        return Unencodable(value)

    def _tensor(self, value: Any) -> Any:
        taken = self._device.take(value)
        return Unencodable(value, taken.why) if type(taken) is Refusal else taken

    def _array(self, value: Any) -> Any:
        if getattr(value, "size", None) == 1:
            return self._one_python(value.item())
        if getattr(value, "size", _MAX_ARRAY_ITEMS + 1) <= _MAX_ARRAY_ITEMS:
            return self._tree(value.tolist(), 0, set())
        return Unencodable(value, f"array of shape {tuple(value.shape)}")

    def _one_python(self, value: Any) -> Any:
        return value if type(value) in _PLAIN else Unencodable(value)

    def _flat(
        self, given: Mapping[str, Any], prefix: str, depth: int, notes: dict[str, str]
    ) -> Iterator[tuple[str, Any]]:
        for count, (key, value) in enumerate(given.items()):
            if count >= _MAX_FIELDS:
                notes[f"{prefix}…"] = f"{len(given) - count} more fields"
                return
            name = key if type(key) is str else _name(key)
            name = prefix + name if prefix else name
            if name in _RESERVED:
                name = f"x_{name}"
            if isinstance(value, Mapping):
                if depth >= _MAX_DEPTH:
                    notes[name] = f"nested deeper than {_MAX_DEPTH}"
                else:
                    yield from self._flat(value, f"{name}/", depth + 1, notes)
            elif value is not None:
                yield name, value

    def _tree(self, value: Any, depth: int, above: set[int]) -> Any:
        if type(value) in _PLAIN or value is None:
            return value
        if isinstance(value, (Mapping, list, tuple, set, frozenset)):
            if id(value) in above:
                return "<itself>"
            if depth >= _MAX_DEPTH:
                return f"<nested deeper than {_MAX_DEPTH}>"
            above = above | {id(value)}
            if isinstance(value, Mapping):
                return {
                    key if type(key) is str else _name(key): self._tree(item, depth + 1, above)
                    for key, item in value.items()
                }
            return [self._tree(item, depth + 1, above) for item in value]
        taken = self.one(value)
        if type(taken) is Unencodable or type(taken) is PendingScalar:
            return f"<{type(value).__name__}>"
        return taken


class Unencodable:
    """Stands for a value that a record cannot hold."""

    __slots__ = ("note",)

    def __init__(self, value: Any, why: str | None = None) -> None:
        name = type(value).__name__
        self.note = f"{name}: {why}" if why else name


def is_finite_number(value: Any) -> bool:
    """Say whether `value` is a number that is neither NaN nor infinite."""
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _name(key: Any) -> str:
    if isinstance(key, (int, float, bool)) or key is None:
        return str(key)
    return str.__str__(key) if isinstance(key, str) else f"<{type(key).__name__}>"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
