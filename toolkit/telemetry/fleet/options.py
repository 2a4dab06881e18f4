"""The options that commands of a fleet share: on the command line, in TELEMETRY_FLEET_* variables and in fleet.toml."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.fleet.address import PASSWORD_VARIABLE, Address, AddressError, address_of
from toolkit.telemetry.fleet.stores import FORMS, Store, store_at

VARIABLE: Final = "TELEMETRY_FLEET"
"""Names the file; followed by _ and a key in capitals, it is the variable for that key."""
KEYS: Final[Mapping[str, str]] = {
    "folders": "a list of paths",
    **dict.fromkeys(("engine", "objects"), "a text"),
    **dict.fromkeys(("password-file", "ca"), "a path"),
    **dict.fromkeys(("keep-days", "drain-timeout"), "a whole number above 0"),
    "deliver-requests": "true or false",
}
"""What a file may say, and what the value is."""
COMMANDS: Final = ("copy", "dashboard", "set-up", "ship", "status")
"""The tables of a file: what is in one is for that command alone."""
_DEFAULT: Final = Path("fleet.toml")


def add_engine_arguments(
    parser: argparse.ArgumentParser, option: str, what: str = "the engine", action: str = "store"
) -> None:
    """Declare the file with options, the address under the name `option`, the password file and the CA."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=file_path,
        help=f"options in a file, see docs/fleet.md (default: the variable {VARIABLE}, else ./{_DEFAULT})",
    )
    parser.add_argument(
        option,
        action=action,
        dest="engine",
        metavar="ADDRESS",
        help=f"{what}: clickhouse://USER@HOST:PORT/DATABASE",
    )
    parser.add_argument(
        "--password-file",
        action=action,
        metavar="FILE",
        type=file_path,
        help=f"file with the password, readable by you alone (default: the variable {PASSWORD_VARIABLE})",
    )
    parser.add_argument(
        "--ca",
        action=action,
        metavar="FILE",
        type=file_path,
        help="CA that signed the engine's certificate (default: the system's)",
    )


def add_objects_arguments(parser: argparse.ArgumentParser, what: str, action: str = "store") -> None:
    """Declare where sample images and other files are stored."""
    parser.add_argument(
        "--objects",
        action=action,
        metavar="PLACE",
        help=f"{what}: {FORMS}, or none (default: none); keys, and AWS_ENDPOINT_URL for another server than Amazon's, "
        "come from the AWS_* variables or ~/.aws",
    )


def chosen_engine(args: argparse.Namespace) -> Address:
    """Return the address that was given, with the password.

    Raises:
        AddressError: there is none, or it, or the file of the password, is invalid.
    """
    if args.engine is None:
        raise AddressError(
            "which engine? clickhouse://USER@HOST:PORT/DATABASE as an option (see --help), "
            f"as engine in {_DEFAULT} or in the variable {VARIABLE}_ENGINE"
        )
    return address_of(args.engine, password_file=args.password_file, ca=args.ca)


def chosen_objects(args: argparse.Namespace) -> Store | None:
    """Return the store that was given, None if there is none.

    Raises:
        PlaceError: it is invalid.
    """
    return None if args.objects in (None, "none") else store_at(args.objects)


def file_path(text: str) -> Path:
    """Return the path in `text`, absolute: the dashboard changes its current folder. Raises ArgumentTypeError."""
    if not text:
        raise argparse.ArgumentTypeError("expected the path of a file or a folder, got ''")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        message = f"the home folder in {text!r} is unknown; use an absolute path"
        raise argparse.ArgumentTypeError(message) from None


def fill_in(args: argparse.Namespace, command: str) -> None:
    """Give each option of `args` that is not set the value of its variable, else of the file; print which were used.

    Raises:
        AddressError: the file cannot be read, or a key or a value in it or in a variable is invalid.
    """
    path = args.config or (Path(os.environ[VARIABLE]).absolute() if os.environ.get(VARIABLE) else _found())
    found = {} if path is None else _in_file(path, command)
    sources = [str(path)] if found else []
    for name, text in os.environ.items():
        if name.startswith(f"{VARIABLE}_") and text:
            key = name.removeprefix(f"{VARIABLE}_").lower().replace("_", "-")
            value: Any = text.split(os.pathsep) if key == "folders" else text
            if KEYS.get(key) == "true or false":
                value = _OF_TEXT.get(text, text)
            is_number = KEYS.get(key, "").endswith("above 0") and text.isascii() and text.isdigit()
            found[key] = _checked(key, int(text) if is_number else value, name, Path.cwd())
            sources.append(name)
    for key, value in found.items():
        if getattr(args, key.replace("-", "_"), value) in (None, []):
            setattr(args, key.replace("-", "_"), value)
    if sources:
        print(f"options from {ascii(', '.join(sources))[1:-1]}", file=sys.stderr)


_OF_TEXT: Final = {"true": True, "1": True, "false": False, "0": False}


def _found() -> Path | None:
    if not _DEFAULT.is_file():
        return None
    status = _DEFAULT.stat()
    # Whoever can write it could choose where a password is sent.
    if os.name == "posix" and (status.st_uid not in (0, os.getuid()) or status.st_mode & 0o002):
        raise AddressError(f"others can change {_DEFAULT.absolute()}; if you trust it: --config {_DEFAULT}")
    return _DEFAULT.absolute()


def _in_file(path: Path, command: str) -> dict[str, Any]:
    if sys.version_info < (3, 11):
        raise AddressError(f"{path} needs Python 3.11 or newer; use the variables {VARIABLE}_…")
    import tomllib

    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise AddressError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    tables = {name: content.pop(name) for name in COMMANDS if isinstance(content.get(name), dict)}
    found = {}
    for name, table in {"": content, **tables}.items():
        for key, value in table.items():
            # Pages show several engines.
            is_list = name == "dashboard" and isinstance(value, list)
            where = f"{path}, [{name}]" if name else str(path)
            checked = [_checked(key, one, where, path.parent) for one in (value if is_list else [value])]
            if name in ("", command):
                found[key] = checked if is_list else checked[0]
    return found


def _checked(key: str, value: Any, where: str, folder: Path) -> Any:
    form = KEYS.get(key)
    if form is None:
        raise AddressError(
            f"{where}: there is no {key!r}; keys: {', '.join(KEYS)}; tables: [{'], ['.join(COMMANDS)}]"
        )
    if form == "a list of paths" and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return [folder / os.path.expanduser(one) for one in value]
    if form in ("a text", "a path") and isinstance(value, str) and value:
        return folder / os.path.expanduser(value) if form == "a path" else value
    is_number = form == "a whole number above 0" and type(value) is int and value > 0
    if is_number or (form == "true or false" and isinstance(value, bool)):
        return value
    raise AddressError(f"{where}: {key} must be {form}, got {value!r}")
