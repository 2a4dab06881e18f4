"""Whatever a caller hands over, as plain values that a record can hold."""

from __future__ import annotations

import datetime
import enum
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from toolkit.telemetry.core.config_mapping import mapping_in, resolved
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.records.device_scalars import DeviceScalars, PendingScalar, Refusal
from toolkit.telemetry.runfolder.codec import as_number, fits_json, more_fields
from toolkit.telemetry.runfolder.records import RESERVED, UNENCODABLE

_MAX_DEPTH = 16
_MAX_FIELDS = 4_000
_MAX_NODES = 20_000
"""Values in one structure: lists of the same list of lists are small in memory and endless on paper."""
_MAX_ARRAY_ITEMS = 64
_PLAIN = frozenset({int, float, bool, str})
_PLACES = ("global_step", "epoch")
_NAMES_OF_TORCH = frozenset({"dtype", "device", "layout", "memory_format"})
"""Types of torch's whose values are names: `torch.bfloat16` says what it is."""


class PlainValues:
    """Turns callers' values into plain ones. Nothing a value does, however odd, comes out as an exception."""

    def __init__(self, guard: Guard, device_scalars: DeviceScalars) -> None:
        self._guard = guard
        self._device = device_scalars

    def fields(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, PendingScalar]]:
        """Return the plain fields of `given`, and those that a device has yet to deliver.

        Nested mappings become `outer/inner`; None is left out; what cannot be kept is named under `unencodable`. A step
        or an epoch that is no number is kept under another name.
        """
        plain: dict[str, Any] = {}
        pending: dict[str, PendingScalar] = {}
        notes: dict[str, str] = {}
        # Most fields are numbers, and most others are tensors: for these nothing is asked that need not be.
        odd: dict[str, Any] = {}
        for name, value in given.items():
            kind = type(value)
            if kind in _PLAIN and type(name) is str and name not in RESERVED:
                plain[name] = value
            elif kind.__name__ == "Tensor" and kind.__module__ == "torch" and name not in RESERVED:
                self._keep(name, self.one(value), plain, pending, notes)
            elif value is not None:
                odd[name] = value
        if odd:
            found: list[tuple[str, Any]] = []
            self._flatten(odd, "", 0, found, notes, [_MAX_NODES])
            for name, value in found:
                self._keep(name, self.one(value), plain, pending, notes)
        if notes:
            plain[UNENCODABLE] = notes
        self.numbers_only(_PLACES, plain, is_finite_number)
        return plain, pending

    def numbers_only(
        self, names: Iterable[str], fields: dict[str, Any], is_right: Callable[[Any], bool]
    ) -> None:
        """Have these fields be numbers, as they are on every record; anything else is kept as `x_<name>`, and reported.

        `["0.5"]` is one all the same, and is reported, too.
        """
        notes = fields.get(UNENCODABLE, {})
        for name in [
            name for name in names if (name in fields and not is_right(fields[name])) or name in notes
        ]:
            value = fields.get(name)
            taken = number_in(value)
            if taken is not None and is_right(taken):
                fields[name] = taken
            elif name in fields:
                fields[f"x_{name}"] = fields.pop(name)
            if type(value) not in (bool, float) and (name not in fields or type(value) is not int):
                what = f"a {notes.get(name) or type(value).__name__}"
                what += f" of {len(value)}" if type(value) is list else ""
                kept = f"it is kept as x_{name}" if f"x_{name}" in fields else "it is left out"
                kept = f"it is taken as {taken}" if name in fields else kept
                self._guard.report_misuse(
                    f"{name} is {what}; it must be one number: {kept}", f"{name} is no number"
                )

    @staticmethod
    def _keep(
        name: str, taken: Any, plain: dict[str, Any], pending: dict[str, PendingScalar], notes: dict[str, str]
    ) -> None:
        if taken is None:
            return
        if name in plain or name in pending:
            # `{"a/b": 1, "a": {"b": 2}}`: both are kept.
            name = _another_name(name, {**plain, **pending})
        if type(taken) is PendingScalar:
            pending[name] = taken
        elif type(taken) is Unencodable:
            notes[name] = taken.note
        else:
            plain[name] = taken

    def tree(self, value: Any) -> Any:
        """Return `value` with its structure kept, for a configuration; oddities become short notes."""
        if type(value) is not dict:
            return self._tree(value, (), [_MAX_NODES])
        # One of them may be endless without cutting the others off.
        return {
            key if type(key) is str else _name(key): self._tree(item, (id(value),), [_MAX_NODES])
            for key, item in value.items()
        }

    def one(self, value: Any) -> Any:
        """Return `value` plain, pending, `Unencodable`, or None for nothing."""
        result: Any = Unencodable(value)
        # The value's own code runs in here, and it may raise anything at all.
        with self._guard.catch("reading a value"):
            result = self._one(value)
        return result

    def _one(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or value is None:
            return value
        module = kind.__module__.partition(".")[0]
        if module == "torch" or hasattr(kind, "__torch_function__"):
            return str(value) if kind.__name__ in _NAMES_OF_TORCH else self._tensor(value)
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
            return self._tree(value, (), [_MAX_NODES])
        if hasattr(kind, "__float__"):
            return float(value)
        return Unencodable(value)

    def _tensor(self, value: Any) -> Any:
        taken = self._device.take(value)
        return Unencodable(value, taken.why) if type(taken) is Refusal else taken

    def _array(self, value: Any) -> Any:
        kind = type(value)
        if kind.__module__ == "numpy.dtypes":
            return str(value)
        if kind.__module__.startswith("numpy.ma") and value.mask.any():
            return Unencodable(value, "masked")
        size = getattr(value, "size", None)
        if size == 1:
            item = value.item()
            # A long double has no Python number of its own, and stays what it is.
            return float(item) if type(item) is kind else self._one(item)
        if size is not None and size <= _MAX_ARRAY_ITEMS:
            return self._tree(value.tolist(), (), [_MAX_NODES])
        return Unencodable(value, None if size is None else f"array of shape {tuple(value.shape)}")

    def _flatten(
        self,
        given: Mapping[str, Any],
        prefix: str,
        depth: int,
        found: list[tuple[str, Any]],
        notes: dict[str, str],
        left: list[int],
    ) -> None:
        # Not by `leaves`: it names what is left out, and calls code of the script's own, inside the guard.
        for place, (key, value) in enumerate(given.items()):
            left[0] -= 1
            if len(found) + len(notes) >= _MAX_FIELDS or left[0] < 0:
                notes["…"] = more_fields(len(given) - place, notes)
                return
            name = prefix + (key if type(key) is str else _name(key))
            if name in RESERVED:
                name = f"x_{name}"
            is_read = False
            # The value's own code runs in here too: a mapping may be a class of the caller's.
            with self._guard.catch("reading a value"):
                if not isinstance(value, Mapping):
                    if value is not None:
                        found.append((name, value))
                elif depth >= _MAX_DEPTH:
                    notes[name] = f"nested deeper than {_MAX_DEPTH}"
                else:
                    self._flatten(value, f"{name}/", depth + 1, found, notes, left)
                is_read = True
            if not is_read:
                notes[name] = type(value).__name__

    def _tree(self, value: Any, above: tuple[int, ...], left: list[int]) -> Any:
        """Return `value` as plain lists, mappings and values; `left` holds how many more there may be."""
        left[0] -= 1
        if left[0] < 0:
            return "…"
        if type(value) in _PLAIN or value is None:
            return value
        result: Any = f"<{type(value).__name__}>"
        with self._guard.catch("reading a value"):
            value = resolved(value)
            if isinstance(value, (Mapping, list, tuple, set, frozenset)):
                if id(value) in above:
                    result = "<itself>"
                elif len(above) >= _MAX_DEPTH:
                    result = f"<nested deeper than {_MAX_DEPTH}>"
                elif isinstance(value, Mapping):
                    result = self._tree_of_mapping(value, (*above, id(value)), left)
                else:
                    result = self._tree_of_items(value, (*above, id(value)), left)
            elif getattr(value, "is_cuda", False) is not True:
                # A structure is written at once. What is still on its way from a device would keep its place there
                # for good, and this may be a thread that must not ask a device for anything.
                taken = self._one(value)
                if type(taken) is Unencodable:
                    found = mapping_in(value, is_whole=False)
                    result = result if found is None else self._tree(dict(found), (*above, id(value)), left)
                elif type(taken) is not PendingScalar:
                    result = taken
        return result

    def _tree_of_mapping(
        self, value: Mapping[Any, Any], above: tuple[int, ...], left: list[int]
    ) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, item in value.items():
            name = key if type(key) is str else _name(key)
            if name in kept:
                # `{1: "a", "1": "b"}`: both are kept.
                name = _another_name(name, kept)
            if left[0] <= 0:
                kept["…"] = "more than a record has room for"
                break
            kept[name] = self._tree(item, above, left)
        return kept

    def _tree_of_items(self, value: Any, above: tuple[int, ...], left: list[int]) -> list[Any]:
        kept: list[Any] = []
        for item in value:
            if left[0] <= 0:
                kept.append("…")
                break
            kept.append(self._tree(item, above, left))
        return kept


class Unencodable:
    """A placeholder for a value that a record cannot hold."""

    __slots__ = ("note",)

    def __init__(self, value: Any, why: str | None = None) -> None:
        name = type(value).__name__
        self.note = f"{name}: {why}" if why else name


def number_in(value: Any) -> float | None:
    """Return the number that a text, a boolean or a list of one item contains; None without one."""
    if type(value) is list and len(value) == 1:
        value = value[0]
    if type(value) is not str:
        return (
            int(value) if type(value) is bool else as_number(value) if type(value) in (int, float) else None
        )
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return None


def is_finite_number(value: Any) -> bool:
    """Say whether `value` is a number that is neither NaN nor infinite, and is written as one."""
    return fits_json(value) or (type(value) is float and math.isfinite(value))


def _name(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    if type(key) in _PLAIN or key is None:
        return str(key)
    if type(key) is tuple and all(type(part) in _PLAIN for part in key):
        return "/".join(map(str, key))
    return f"<{type(key).__name__}>"


def _another_name(name: str, taken: Mapping[str, Any]) -> str:
    return f"x_{name}" if f"x_{name}" not in taken else f"{name}~{len(taken)}"
