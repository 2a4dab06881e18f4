"""Errors without their messages: types, and stack frames in public packages."""

from __future__ import annotations

import builtins
import re
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from toolkit.mirrors.usage.allow_list import MOST_ERRORS, MOST_FRAMES
from toolkit.mirrors.usage.allowed_words import MODULES
from toolkit.runfolder.records import Record

SCRIPT: Final = "(script)"
"""Replaces a frame of private code: neither its file nor its function is sent."""
_OWN_TYPE: Final = "an_exception_of_the_script"


class ErrorReports:
    """The distinct errors of a session, each with its count. Messages are never sent: they may contain anything."""

    def __init__(self, folders: Iterable[Path] = (Path(),)) -> None:
        self._folders = tuple(folders)
        self._errors: dict[Any, dict[str, Any]] = {}

    def take(self, record: Record) -> None:
        """Count an error record; telemetry's own failures are counted elsewhere."""
        if record.get("source") == "telemetry":
            return
        key = record.get("fingerprint") if isinstance(record.get("fingerprint"), str) else len(self._errors)
        if key not in self._errors and len(self._errors) >= MOST_ERRORS:
            return
        count = record.get("count")
        self._errors[key] = {
            "type": public_type(record.get("type"), record.get("module")),
            "count": count if isinstance(count, int) else 1,
            "stack": public_stack(record.get("stack"), self._folders),
        }

    def totals(self, end: Record) -> dict[str, Any]:
        """Return the errors, with the counts of the end record."""
        counted = end.get("errors")
        for kind in counted if isinstance(counted, list) else ():
            if isinstance(kind, dict) and kind.get("fingerprint") in self._errors:
                self._errors[kind["fingerprint"]]["count"] = kind.get("count")
        return {"errors": list(self._errors.values()), "errors_total": end.get("errors_total")}


def public_type(name: Any, module: Any) -> str:
    """Return the name of an exception of Python or of a public package; a placeholder for any other."""
    if not isinstance(name, str):
        return _OWN_TYPE
    if module in (None, "builtins"):
        kind = getattr(builtins, name, None)
        return name if isinstance(kind, type) and issubclass(kind, BaseException) else _OWN_TYPE
    if module == "signal":
        return name if name in signal.Signals.__members__ else _OWN_TYPE
    package = module.partition(".")[0] if isinstance(module, str) else ""
    is_public = package in MODULES or (package in sys.stdlib_module_names and package != "__main__")
    return f"{package}.{name}" if is_public and name.isidentifier() else _OWN_TYPE


def public_stack(stack: Any, folders: Iterable[Path] = (Path(),)) -> list[str] | None:
    """Return the frames of a stack: those in public packages with module, line and function, others as `(script)`.

    A package in one of `folders`, where the script runs, is private, whatever its name.
    """
    if not isinstance(stack, list):
        return None
    return [_public_frame(line, tuple(folders)) for line in stack[:MOST_FRAMES]]


_LINE = re.compile(r"(?P<path>[^\n]{1,1000}):(?P<line>[0-9]{1,7}) in (?P<function>[^\n]{1,200})")
_LEFT_OUT = re.compile(r"(… [0-9]{1,7} frames) …")
_STANDARD_LIBRARY = re.compile(r".*/(?:lib/python3\.[0-9]{1,2}t?|Lib)/(?!site-packages/|dist-packages/)")
_MODULE = re.compile(r"[A-Za-z0-9_]+(?:/[A-Za-z0-9_]+)*\.py")
_FUNCTION = re.compile(r"[A-Za-z0-9_<>]{1,80}")


def _public_frame(line: Any, folders: tuple[Path, ...]) -> str:
    text = line if isinstance(line, str) else ""
    left_out = _LEFT_OUT.fullmatch(text)
    if left_out is not None:
        return left_out[1]
    match = _LINE.fullmatch(text)
    if match is None:
        return SCRIPT
    path = match["path"].replace("\\", "/")
    standard = _STANDARD_LIBRARY.match(path)
    inner = path[standard.end() :] if standard is not None else path
    public = sys.stdlib_module_names if standard is not None else MODULES
    package = inner.partition("/")[0].removesuffix(".py")
    if _MODULE.fullmatch(inner) is None or package not in public:
        return SCRIPT
    if standard is None and any((folder / package).exists() for folder in folders):
        return SCRIPT
    module = inner.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    function = match["function"]
    return f"{module}:{match['line']}" + (f" in {function}" if _FUNCTION.fullmatch(function) else "")
