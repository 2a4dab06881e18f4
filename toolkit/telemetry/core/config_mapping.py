"""A configuration as a mapping, whatever holds it: argparse, dataclasses, attrs, pydantic, OmegaConf, absl, a class."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

_PLAIN: Final = (bool, int, float, str, list, tuple, dict, type(None))
_NAMESPACES: Final = frozenset({("argparse", "Namespace"), ("types", "SimpleNamespace")})


def mapping_in(given: Any, *, is_whole: bool = True) -> Mapping[Any, Any] | None:
    """Return the names and values of a configuration; None if it is something else.

    An object of a class of the script's own, the class or a module is one only if it is the whole configuration; inside
    of one, such an object is one if it holds nothing but plain values. May raise what the object's own code raises.
    """
    if isinstance(given, Mapping):
        return given
    kind = type(given)
    for names in (getattr(kind, "_fields", None), [field.name for field in _fields(kind)]):
        if names and isinstance(names, (list, tuple)):
            return {name: getattr(given, name) for name in names if hasattr(given, name)}
    for name in ("flag_values_dict", "to_dict") if is_whole else ():
        # absl hides its flags from `vars`; `to_dict` is how Hugging Face and ml_collections do it.
        convert: Callable[[], Any] | None = getattr(given, name, None)
        found = convert() if callable(convert) and not isinstance(given, type) else None
        if isinstance(found, Mapping):
            return found
    own = getattr(given, "__dict__", None)
    if own is None or (callable(given) and not (is_whole and isinstance(given, type))):
        return None
    if (kind.__module__, kind.__name__) in _NAMESPACES or hasattr(kind, "__pydantic_fields__"):
        return {**own, **(getattr(given, "__pydantic_extra__", None) or {})}
    classes = given.__mro__ if isinstance(given, type) else kind.__mro__ if type(kind) is type else ()
    inherited = {
        name: value for cls in reversed(classes) for name, value in vars(cls).items() if cls is not object
    }
    values = {**inherited, **own}
    kept = {name: value for name, value in values.items() if not name.startswith("_") and _is_value(value)}
    is_config = is_whole or (
        not hasattr(kind, "__iter__") and all(isinstance(v, _PLAIN) for v in kept.values())
    )
    return kept if kept and is_config else None


def resolved(given: Any) -> Any:
    """Return what OmegaConf holds as plain lists and mappings, with its references resolved if they can be."""
    omegaconf = sys.modules.get("omegaconf")
    # Another thread may be importing it just now.
    kind = getattr(omegaconf, "OmegaConf", None)
    if omegaconf is None or kind is None or not kind.is_config(given):
        return given
    try:
        return kind.to_container(given, resolve=True)
    except omegaconf.errors.OmegaConfBaseException:
        return kind.to_container(given, resolve=False)


def _fields(kind: type) -> Any:
    return (
        dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else getattr(kind, "__attrs_attrs__", ())
    )


def _is_value(value: Any) -> bool:
    is_code = callable(value) or isinstance(value, (ModuleType, property, classmethod, staticmethod))
    return not is_code and not hasattr(type(value), "__set_name__")
