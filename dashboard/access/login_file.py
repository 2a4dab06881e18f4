"""The file behind `--login`: Streamlit's `[auth]` section, and our list of allowed users."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dashboard.access.allow_list import UNNAMED_PROVIDER, AllowList, AllowListError
from dashboard.access.secret_file import SecretFileError, read_secret_file

CALLBACK_PATH = "/oauth2callback"
_OPTION = "--login"
_REQUIRED = ("client_id", "client_secret", "server_metadata_url")
_KNOWN_ELSEWHERE = frozenset(("redirect_uri", "cookie_secret", "expose_tokens", *_REQUIRED, "client_kwargs"))
_MINIMUM_COOKIE_SECRET = 32
# Streamlit rejects underscores, and a colon would make entries by id ambiguous.
_PROVIDER_NAME = re.compile(r"[A-Za-z0-9-]+")
_USUAL_PORTS = {"http": 80, "https": 443}
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class LoginFileError(ValueError):
    """The file is invalid; the message says why, and never shows a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Login through an identity provider, and who is allowed."""

    auth: Mapping[str, Any] = field(repr=False)
    """What Streamlit's `st.login` needs, including secrets."""

    providers: tuple[str, ...]
    """The names of `[auth.NAME]` sections; empty for a single provider in `[auth]` itself."""

    allow_list: AllowList

    @property
    def origin(self) -> str:
        """The origin under which the dashboard is opened, as a browser spells it."""
        return str(self.auth["redirect_uri"]).removesuffix(CALLBACK_PATH)


def read_login_file(path: Path) -> Login:
    """Read and check the login file.

    Raises:
        LoginFileError: it cannot be read, others can read it, or something in it is missing or invalid.
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
        raise _invalid(path, f"is not valid TOML: {error}") from error
    return login_of(content, path)


def login_of(content: Mapping[str, Any], path: Path) -> Login:
    """Check the parsed file; `path` is for messages."""
    auth = content.get("auth")
    if not isinstance(auth, dict):
        raise _invalid(path, "has no [auth] section (the identity provider)")
    if "expose_tokens" in auth:
        raise _invalid(path, "has expose_tokens, which the dashboard does not support; leave it out")
    redirect = auth.get("redirect_uri")
    origin = _callback_origin(redirect) if isinstance(redirect, str) else None
    if origin is None:
        raise _invalid(path, f"needs redirect_uri in [auth]: the dashboard's URL followed by {CALLBACK_PATH}")
    if redirect != f"{origin}{CALLBACK_PATH}":
        # Streamlit compares it exactly; a different spelling leads back to the login page.
        raise _invalid(path, f"must spell redirect_uri the way browsers do: {origin}{CALLBACK_PATH}")
    secret = auth.get("cookie_secret")
    if not isinstance(secret, str) or len(secret) < _MINIMUM_COOKIE_SECRET or len(set(secret)) < 8:
        raise _invalid(
            path,
            f"needs a cookie_secret in [auth] of at least {_MINIMUM_COOKIE_SECRET} random characters, "
            "because anyone who guesses it can log in as anyone. This makes one:\n"
            "  python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    named = tuple(
        name for name, part in auth.items() if isinstance(part, dict) and name not in _KNOWN_ELSEWHERE
    )
    for name in named:
        if not _PROVIDER_NAME.fullmatch(name) or name.lower() == UNNAMED_PROVIDER:
            raise _invalid(
                path,
                f"has [auth.{name}]; a provider's name consists of letters, digits and '-', "
                f"and must not be {UNNAMED_PROVIDER!r}",
            )
    for name in named or (None,):
        section = auth[name] if name else auth
        where = f"[auth.{name}]" if name else "[auth]"
        for key in _REQUIRED:
            if not isinstance(section.get(key), str) or not section[key]:
                raise _invalid(path, f"needs {key} in {where}")
        if not _is_tamper_proof(section["server_metadata_url"]):
            raise _invalid(
                path,
                f"needs https:// in the server_metadata_url of {where}: "
                "otherwise someone in between could log in as anyone",
            )
    return Login(auth=auth, providers=named, allow_list=_allow_list(content, named, path))


def _allow_list(content: Mapping[str, Any], providers: tuple[str, ...], path: Path) -> AllowList:
    section = content.get("dashboard", {})
    lists: dict[str, tuple[str, ...]] = {}
    for name in ("allow", "readers"):
        entries = section.get(name, []) if isinstance(section, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise _invalid(path, f"needs a list of addresses as {name} in [dashboard]")
        lists[name] = tuple(entries)
    unknown = sorted(set(section) - {"allow", "readers"})
    if unknown:
        raise _invalid(path, f"has {unknown} in [dashboard]; known: ['allow', 'readers']")
    try:
        allow_list = AllowList(operators=lists["allow"], viewers=lists["readers"])
        allow_list.check_providers(providers)
    except AllowListError as error:
        raise _invalid(path, f"has an invalid list in [dashboard]: {error}") from error
    return allow_list


def _callback_origin(url: str) -> str | None:
    """Return the origin of a callback URL as a browser spells it; None if it is not one."""
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


def _is_tamper_proof(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _THIS_MACHINE)


def _invalid(path: Path, what: str) -> LoginFileError:
    return LoginFileError(f"{_OPTION} {str(path)!r} {what}")
