"""Short descriptions of the local variables of a frame, without running their code or waiting for a device."""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.privacy.masking import Masker

_MAX_VALUES: Final = 25
_MAX_ITEMS: Final = 5
_MAX_DEPTH: Final = 3
_LONGEST: Final = 200
_SEARCHED: Final = 2_000
"""Characters of a text that are searched for secrets before it is truncated: half a secret is not recognised."""
_PLAIN: Final = (type(None), bool, int, float, complex)
_BRACKETS: Final[dict[type, tuple[str, str]]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("{", "}"),
    dict: ("{", "}"),
}
_OMITTED: Final = (ModuleType, FunctionType, type)


def shown_locals(frame: FrameType, masker: Masker, guard: Guard) -> dict[str, str]:
    """Return the names and values of a frame, secrets masked, each at most 200 characters. Never raises."""
    found: dict[str, str] = {}
    with guard.catch("reading local values"):
        for name, value in list(frame.f_locals.items()):
            # Not `isinstance`, which asks the value itself: a lazy proxy would load its object.
            if name.startswith("__") or issubclass(type(value), _OMITTED):
                continue
            if len(found) >= _MAX_VALUES:
                found["…"] = "more"
                break
            text = f"<{type(value).__name__}>"
            with guard.catch("reading a local value"):
                text = _shown(value, (name,), masker)
            found[masker.mask_name(name)] = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return found


def _shown(value: Any, path: tuple[str, ...], masker: Masker) -> str:
    kind = type(value)
    if kind is int and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if kind in _PLAIN:
        return repr(_masked(value, path, masker))
    if kind is str:
        return repr(_masked(_whole_words(value), path, masker))
    if kind in (bytes, bytearray):
        return f"<{len(value)} bytes>"
    if kind in _BRACKETS:
        return _shown_container(value, path, masker)
    return _about(value)


def _shown_container(value: Any, path: tuple[str, ...], masker: Masker) -> str:
    if len(path) > _MAX_DEPTH:
        return f"<{type(value).__name__} of {len(value)}>"
    if type(value) is dict:
        first = list(_first(value.items()))
        parts = [
            f"{_shown_key(key, masker)}: {_shown(item, (*path, key if type(key) is str else ''), masker)}"
            for key, item in first
        ]
    else:
        first = list(_first(value))
        parts = [_shown(item, path, masker) for item in first]
    opening, closing = _BRACKETS[type(value)]
    if len(value) > len(first):
        parts.append(f"… {len(value) - len(first)} more")
    return f"{opening}{', '.join(parts)}{closing}"


def _shown_key(key: Any, masker: Masker) -> str:
    if type(key) is str:
        return repr(masker.mask_name(_whole_words(key)))
    return repr(key) if type(key) in _PLAIN else _about(key)


def _about(value: Any) -> str:
    """Return the type of a value, not its content: its `repr` may take forever, or wait for a GPU."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if hasattr(kind, "__torch_function__") or kind.__module__.partition(".")[0] == "numpy":
        parts = [
            str(tuple(value.shape)) if part == "shape" else str(getattr(value, part))
            for part in ("shape", "dtype", "device")
            if hasattr(value, part)
        ]
        return f"<{name} {' '.join(parts)}>" if parts else f"<{name}>"
    return f"<{name}>"


def _masked(value: Any, path: tuple[str, ...], masker: Masker) -> Any:
    """Return a value, masked as if it were under these keys."""
    wrapped: Any = value
    for name in reversed(path):
        wrapped = {name: wrapped}
    masked = masker.mask(wrapped)
    for _ in path:
        masked = next(iter(masked.values()))
    return masked


def _whole_words(text: str) -> str:
    return text if len(text) <= _SEARCHED else f"{text[:_SEARCHED].rpartition(' ')[0]} …"


def _first(items: Iterable[Any]) -> Iterable[Any]:
    for number, item in enumerate(items):
        if number >= _MAX_ITEMS:
            return
        yield item
