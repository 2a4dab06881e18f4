"""Teams: a database for each, and its users with passwords of their own. No team reads or writes another's."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from toolkit.telemetry.fleet.address import Address, AddressError, read_password
from toolkit.telemetry.fleet.engine import Engine, EngineError
from toolkit.telemetry.fleet.schema import TABLES

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MIN_CHARS: Final = 16
_MAY_NOT: Final = frozenset({495, 497, 514})
"""ClickHouse's codes: this user, or this engine, makes no users."""


def team_address(address: Address, team: str) -> Address:
    """Return `address` with the team's database, telemetry_NAME unless it names one.

    Raises:
        AddressError: the name of the team is invalid.
    """
    if not _NAME.fullmatch(team):
        raise AddressError(f"{ascii(team)[:60]} is not the name of a team; use a-z, 0-9 and _, at most 32")
    return replace(address, database=f"telemetry_{team}") if address.database == "telemetry" else address


def grants(database: str, team: str) -> Iterator[str]:
    """Yield the statements that let the users of a team do what they need in its database, and nothing elsewhere."""
    yield f"GRANT SELECT ON {database}.* TO {team}_ship, {team}_page, {team}_reader"
    # A page writes labels and requests alone, and a node everything else: its password steers no run.
    for table in TABLES:
        users = {"requests": f"{team}_page", "labels": f"{team}_ship, {team}_page"}.get(
            table.name, f"{team}_ship"
        )
        yield f"GRANT INSERT ON {database}.{table.name} TO {users}"


def make_team(address: Address, team: str, folder: Path) -> tuple[list[str], list[str]]:
    """Make the users that are missing, and files in `folder`: their passwords and fleet.toml.

    Return what was done, in words, and the statements that an administrator has to run, if this user may not.
    Passwords and files that exist are kept.

    Raises:
        EngineError: the engine did not answer.
        OSError: a file cannot be written or read.
        AddressError: others can read a file.
    """
    engine = Engine(replace(address, database="default"))
    statements, refusal = [], None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    said = [_new_file(folder / "fleet.toml", _options(address, team))]
    try:
        known = {name for (name,) in engine.rows("SELECT name FROM system.users")}
    except EngineError as error:
        known, refusal = set(), _only_refusal(error)
    for user in (f"{team}_ship", f"{team}_page", f"{team}_reader"):
        path = folder / f"{user}.password"
        if user in known and not path.exists():
            said.append(f"user {user} exists and keeps its password, which is not in {folder}")
            continue
        said.append(_new_file(path))
        digest = hashlib.sha256(_password(path).encode()).hexdigest()
        statements.append(f"CREATE USER IF NOT EXISTS {user} IDENTIFIED WITH sha256_hash BY '{digest}'")
    statements += grants(address.database, team)
    for statement in statements if refusal is None else ():
        try:
            engine.query(statement)
        except EngineError as error:
            refusal = _only_refusal(error)
            break
    engine.close()
    if refusal is not None:
        return [*said, f"the users are not made: {refusal}"], statements
    return [*said, f"the users {team}_ship, {team}_page and {team}_reader may use {address.database}"], []


def _only_refusal(error: EngineError) -> EngineError:
    if error.code not in _MAY_NOT:
        raise error
    return error


def _password(path: Path) -> str:
    password = read_password(path)
    if len(password) < _MIN_CHARS:
        raise AddressError(f"the password in {path} has fewer than {_MIN_CHARS} characters: remove the file")
    return password


def _options(address: Address, team: str) -> str:
    """Return the fleet.toml of a team; the other files are in the same folder."""
    # Before the first table, or it would belong to that.
    lines = ['# folders = ["/scratch/*/logs"]', *([f'ca = "{address.ca.name}"'] if address.ca else [])]
    for table, user in {"ship": "ship", "status": "ship", "dashboard": "page", "copy": "reader"}.items():
        of_user = replace(address, user=f"{team}_{user}")
        lines += [f'\n[{table}]\nengine = "{of_user}"', f'password-file = "{of_user.user}.password"']
    return "\n".join(lines) + "\n"


def _new_file(path: Path, text: str = "") -> str:
    """Write `text`, or a random secret, into a new file that only this user can read; return what was done."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return f"{path} is kept"
    with os.fdopen(descriptor, "w") as file:
        file.write(text or secrets.token_urlsafe(48) + "\n")
    return f"{path} made"
