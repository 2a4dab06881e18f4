"""The file behind `--login`: Streamlit's `[auth]` section, and our list of who may come in."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dashboard.access.allow_list import UNNAMED_PROVIDER, GuestList, GuestListError
from dashboard.access.secret_file import SecretFileError, read_secret_file

CALLBACK_PATH = "/oauth2callback"
_OPTION = "--login"
_NEEDED = ("client_id", "client_secret", "server_metadata_url")
_KNOWN_ELSEWHERE = frozenset(("redirect_uri", "cookie_secret", "expose_tokens", *_NEEDED, "client_kwargs"))
_MINIMUM_COOKIE_SECRET = 32
# Streamlit takes no underscore, and a colon would make two people of one entry by id.
_PROVIDER_NAME = re.compile(r"[A-Za-z0-9-]+")
_USUAL_PORTS = {"http": 80, "https": 443}
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class LoginFileError(ValueError):
    """The file cannot be used; the message says what is wrong in it, and never shows a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Log in with an identity provider, and who may."""

    auth: Mapping[str, Any] = field(repr=False)
    """What Streamlit's `st.login` needs, secrets among it."""

    providers: tuple[str, ...]
    """The names of `[auth.NAME]` sections; none stands for the one provider of `[auth]` itself."""

    guests: GuestList

    @property
    def origin(self) -> str:
        """The place that people open the dashboard at, as a browser says it."""
        return str(self.auth["redirect_uri"]).removesuffix(CALLBACK_PATH)


def read_login_file(path: Path) -> Login:
    """Return what the file says.

    Raises:
        LoginFileError: it cannot be read, others can read it, or something is missing.
    """
    try:
        text = read_secret_file(path, _OPTION)
    except SecretFileError as error:
        raise LoginFileError(str(error)) from error
    if sys.version_info < (3, 11):
        raise LoginFileError("--login needs Python 3.11 or newer")
    import tomllib

    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _wrong(path, f"is no TOML: {error}") from error
    return login_of(content, path)


def login_of(content: Mapping[str, Any], path: Path) -> Login:
    """Return what the parsed file says; `path` is for messages."""
    auth = content.get("auth")
    if not isinstance(auth, dict):
        raise _wrong(path, "has no [auth] section, which says where people log in")
    if "expose_tokens" in auth:
        raise _wrong(path, "has expose_tokens, for which the dashboard has no use; leave it out")
    redirect = auth.get("redirect_uri")
    place = _callback_place(redirect) if isinstance(redirect, str) else None
    if place is None:
        raise _wrong(
            path,
            f"needs redirect_uri in [auth]: where people open the dashboard, with {CALLBACK_PATH} behind",
        )
    if redirect != f"{place}{CALLBACK_PATH}":
        # Streamlit compares it letter by letter, and whoever logs in would stand at the door again.
        raise _wrong(path, f"must have redirect_uri as browsers spell it: {place}{CALLBACK_PATH}")
    secret = auth.get("cookie_secret")
    if not isinstance(secret, str) or len(secret) < _MINIMUM_COOKIE_SECRET or len(set(secret)) < 8:
        raise _wrong(
            path,
            f"needs a cookie_secret in [auth] of at least {_MINIMUM_COOKIE_SECRET} characters; who guesses it "
            "is whoever they like. This makes a good one:\n"
            "  python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    named = tuple(
        name for name, part in auth.items() if isinstance(part, dict) and name not in _KNOWN_ELSEWHERE
    )
    for name in named:
        if not _PROVIDER_NAME.fullmatch(name) or name.lower() == UNNAMED_PROVIDER:
            raise _wrong(
                path,
                f"has [auth.{name}]; a provider's name has only letters, digits and '-' in it, "
                f"and is not {UNNAMED_PROVIDER!r}",
            )
    for name in named or (None,):
        section = auth[name] if name else auth
        where = f"[auth.{name}]" if name else "[auth]"
        for key in _NEEDED:
            if not isinstance(section.get(key), str) or not section[key]:
                raise _wrong(path, f"needs {key} in {where}")
        if not _is_beyond_tampering(section["server_metadata_url"]):
            raise _wrong(
                path,
                f"needs https:// in the server_metadata_url of {where}: "
                "whoever sits on the way there could be anybody here",
            )
    return Login(auth=auth, providers=named, guests=_guests(content, named, path))


def _guests(content: Mapping[str, Any], providers: tuple[str, ...], path: Path) -> GuestList:
    section = content.get("dashboard", {})
    lists: dict[str, tuple[str, ...]] = {}
    for name in ("allow", "readers"):
        entries = section.get(name, []) if isinstance(section, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise _wrong(path, f"needs a list of addresses as {name} in [dashboard]")
        lists[name] = tuple(entries)
    unknown = sorted(set(section) - {"allow", "readers"})
    if unknown:
        raise _wrong(path, f"has {unknown} in [dashboard]; known: ['allow', 'readers']")
    try:
        guests = GuestList(steer=lists["allow"], look=lists["readers"])
        guests.check_providers(providers)
    except GuestListError as error:
        raise _wrong(path, f"has no list that could be followed in [dashboard]: {error}") from error
    return guests


def _callback_place(url: str) -> str | None:
    """Return the place that `url` names, as a browser says it; None where it is no address of ours to come back to."""
    try:
        parts = urlsplit(url)
        name, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in _USUAL_PORTS or not name or port == 0 or "@" in parts.netloc:
        return None
    if parts.path != CALLBACK_PATH:
        return None
    shown_name = f"[{name}]" if ":" in name else name
    shown_port = "" if port in (None, _USUAL_PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{shown_name}{shown_port}"


def _is_beyond_tampering(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _THIS_MACHINE)


def _wrong(path: Path, what: str) -> LoginFileError:
    return LoginFileError(f"{_OPTION} {str(path)!r} {what}")
