"""The address of an engine, `clickhouse://USER@HOST:PORT/DATABASE`, and the password that goes with it."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from toolkit.telemetry.core.checks import HOST, is_this_machine

SCHEME: Final = "clickhouse"
PASSWORD_VARIABLE: Final = "TELEMETRY_CLICKHOUSE_PASSWORD"  # noqa: S105 - a name, not a password
"""Environment variable with the password, if no file is given."""

_SECURE_PORT: Final = 8443
_PLAIN_PORT: Final = 8123
_DATABASE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MAX_PASSWORD_BYTES: Final = 4096


class AddressError(ValueError):
    """An invalid address, password file or option; the message says what is wrong and never contains a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the engine is and how to log in."""

    host: str
    port: int
    user: str
    database: str
    secure: bool
    password: str = field(default="", repr=False)
    password_file: Path | None = None
    """Where the password came from: it may have another one later."""
    ca: Path | None = None

    @property
    def place(self) -> str:
        """Host and port, as they are written in an address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{SCHEME}://{self.user}@{self.place}/{self.database}"


def address_of(
    text: str, *, password: str | None = None, password_file: Path | None = None, ca: Path | None = None
) -> Address:
    """Return the address in `text`; the password is the one in the file or the environment, unless it is given.

    TLS is used unless the host is this machine; `?secure=1` or a CA ask for it there too.

    Raises:
        AddressError: it, or the password file, is invalid.
    """
    form = f"{SCHEME}://USER@HOST:PORT/DATABASE"
    scheme, _, rest = text.partition("://")
    if scheme != SCHEME or not rest:
        raise AddressError(f"the address must have the form {form}")
    # A password may contain any of these signs: it must not be taken for a host, a port or a database.
    login, at, place = rest.rpartition("@")
    place, slash, path = place.partition("/")
    if ":" in login:
        raise AddressError(
            "the address contains a password, which other users of this machine can see: "
            f"use --password-file or {PASSWORD_VARIABLE}"
        )
    if any(sign in login for sign in "/?#"):
        raise AddressError("the user name contains one of / ? #; write it as %2F, %3F or %23")
    parts = urlsplit(f"//x/{path}" if slash else "//x/")
    database = unquote(parts.path.strip("/")) or "telemetry"
    if not _DATABASE.fullmatch(database):
        raise AddressError(f"{ascii(database)[:60]} is not the name of a database; use letters, digits and _")
    host, port = _host_and_port(place)
    if parts.query not in ("", "secure=1"):
        raise AddressError("the only option of an address is ?secure=1; TLS cannot be turned off")
    secure = bool(parts.query) or ca is not None or not is_this_machine(host)
    return Address(
        host=host,
        port=port or (_SECURE_PORT if secure else _PLAIN_PORT),
        user=_one_line(unquote(login), "the user name") if at else "default",
        database=database,
        secure=secure,
        password=read_password(password_file) if password is None else password,
        password_file=password_file,
        ca=ca,
    )


def read_password(path: Path | None) -> str:
    """Return the password in the file at `path`, else the one in the environment, else an empty one.

    Raises:
        AddressError: the file cannot be read, or other users can read it.
    """
    if path is None:
        return _one_line(os.environ.get(PASSWORD_VARIABLE, ""), f"the password in {PASSWORD_VARIABLE}")
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise AddressError(f"{path} is not a regular file")
            # Of root's files, which this user cannot own, a group may read: Kubernetes mounts them like that.
            if os.name == "posix" and status.st_mode & (
                0o037 if status.st_uid == 0 != os.geteuid() else 0o077
            ):
                raise AddressError(f"other users can read the password in {path}: chmod 600 {path}")
            data = file.read(_MAX_PASSWORD_BYTES + 1)
    except OSError as error:
        raise AddressError(f"the password file {path} cannot be read: {error.strerror}") from error
    if len(data) > _MAX_PASSWORD_BYTES:
        raise AddressError(f"the password file {path} is larger than {_MAX_PASSWORD_BYTES} bytes")
    try:
        return _one_line(data.decode("utf-8").rstrip("\r\n"), f"the password in {path}")
    except UnicodeDecodeError:
        raise AddressError(f"the password file {path} is not UTF-8 text") from None


def _one_line(text: str, what: str) -> str:
    # It becomes a header of a request.
    if any(not char.isprintable() for char in text):
        raise AddressError(f"{what} contains a control character or a line break")
    return text


def _host_and_port(place: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not HOST.fullmatch(host) or port == 0:
        # What follows a colon may be a password.
        shown = place if place.startswith("[") else place.partition(":")[0]
        raise AddressError(f"{ascii(shown)[:60]} with what follows it is not HOST or HOST:PORT")
    return host, port
