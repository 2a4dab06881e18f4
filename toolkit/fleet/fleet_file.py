"""`fleet.toml` and the TELEMETRY_FLEET_* variables: the options that the commands of a fleet share, written once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "TELEMETRY_FLEET"
"""Names the file; followed by _ and a key in capitals, it is the variable for that key."""
KEYS: Final[Mapping[str, str]] = {
    "engine": "text",
    "password-file": "file",
    "ca": "file",
    "folders": "folders",
    "objects": "text",
    "objects-endpoint": "text",
    "metrics": "text",
    "deliver-requests": "file",
    "request-key": "file",
    "archive": "text",
    "cluster": "text",
    "replicas": "number",
    "keep-days": "number",
}
"""What a file may say, and of which form the value is."""
COMMANDS: Final = ("archive", "dashboard", "pull", "set-up", "ship", "status")
"""The tables of a file: what is in one is for that command alone."""
_FORMS: Final = {
    "text": "text in quotes",
    "file": "the path of a file, in quotes",
    "folders": "a list of paths in quotes",
    "number": "a whole number above 0",
}
_DEFAULT: Final = Path("fleet.toml")


class FleetFileError(ValueError):
    """A file or a variable that cannot be used; the message says which, and what is allowed."""


def fill_in(args: argparse.Namespace, command: str) -> str:
    """Give each option of `args` that is None the value of its variable, else that of the file for `command`.

    Return where values were taken from, "" if from nowhere.

    Raises:
        FleetFileError: the file cannot be read, or a key or a value in it or in a variable is invalid.
    """
    path = _file_of(args.config)
    found = {} if path is None else _from_file(path, command)
    sources = [str(path)] if path is not None and found else []
    for name, key, value in _variables():
        found[key] = _checked(key, value, name, Path.cwd())
        sources.append(name)
    for key, value in found.items():
        name = key.replace("-", "_")
        if getattr(args, name, value) in (None, []):
            setattr(args, name, value)
    return ", ".join(sources)


def _file_of(given: Path | None) -> Path | None:
    named = given or os.environ.get(VARIABLE)
    if named or not _DEFAULT.is_file():
        # Absolute: the dashboard changes its current folder.
        return Path(named).expanduser().absolute() if named else None
    status = _DEFAULT.stat()
    # Whoever may write here could otherwise choose where a password is sent.
    if os.name == "posix" and (status.st_uid not in (0, os.getuid()) or status.st_mode & 0o002):
        raise FleetFileError(
            f"{_DEFAULT.absolute()} belongs to or can be changed by others; if you trust it: --config {_DEFAULT}"
        )
    return _DEFAULT.absolute()


def _from_file(path: Path, command: str) -> dict[str, Any]:
    if sys.version_info < (3, 11):
        raise FleetFileError(f"{path} needs Python 3.11 or newer; use the variables {VARIABLE}_…")
    import tomllib

    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise FleetFileError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FleetFileError(f"{path}: {error}") from error
    tables = {name: content.pop(name) for name in COMMANDS if isinstance(content.get(name), dict)}
    of_all = {key: _checked(key, value, str(path), path.parent) for key, value in content.items()}
    of_each = {
        name: {key: _checked(key, value, f"{path}, in [{name}]", path.parent) for key, value in table.items()}
        for name, table in tables.items()
    }
    return {**of_all, **of_each.get(command, {})}


def _variables() -> Iterator[tuple[str, str, Any]]:
    for name, text in os.environ.items():
        if name.startswith(f"{VARIABLE}_") and text:
            key = name.removeprefix(f"{VARIABLE}_").lower().replace("_", "-")
            form = KEYS.get(key)
            is_number = form == "number" and text.isascii() and text.isdigit()
            yield name, key, text.split(os.pathsep) if form == "folders" else int(text) if is_number else text


def _checked(key: str, value: Any, where: str, folder: Path) -> Any:
    form = KEYS.get(key)
    if form is None:
        what = "table" if isinstance(value, dict) else "key"
        known = ", ".join(f"[{name}]" for name in COMMANDS) if what == "table" else ", ".join(KEYS)
        raise FleetFileError(f"{where}: there is no {what} {key!r}; known: {known}")
    if form == "number" and type(value) is int and value > 0:
        return value
    if form == "folders" and isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return [folder / Path(one).expanduser() for one in value]
    if form in ("text", "file") and isinstance(value, str) and value:
        return folder / Path(value).expanduser() if form == "file" else value
    raise FleetFileError(f"{where}: {key} must be {_FORMS[form]}, got {value!r}")
