"""Visitors with a name: by Streamlit's `st.login` and a list of people, or by a header that a proxy sets."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..asgi import HEALTH_PATH, AsgiApp, Message, Receive, Send, answer, cookies_of, refuse
from .roles import Role, with_role
from .secret_file import read_secret_file

CALLBACK_PATH = "/oauth2callback"
_REQUIRED = ("redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url")
_MINIMUM_COOKIE_SECRET = 32
_BY_ID = "sub:"
_PROTECTED = ("/media/", "/run-file", "/curves", "/_stcore/metrics")
"""Everything else over HTTP is the same for every run and visitor; page contents use the WebSocket."""


class LoginError(ValueError):
    """The login file is invalid; the message says why, and never shows a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowList:
    """Who gets access: `name@example.org`, everyone `@example.org`, or `sub:ID`, the provider's id of a person."""

    operators: tuple[str, ...] = ()
    viewers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        entries = (*self.operators, *self.viewers)
        if not entries:
            raise LoginError("allow and readers are empty: everyone with an account would have access")
        for entry in entries:
            if not entry.startswith(_BY_ID) and (
                entry.count("@") != 1 or entry.endswith("@") or " " in entry
            ):
                raise LoginError(f"{entry!r} is neither 'name@example.org', '@example.org' nor 'sub:ID'")

    def role_of(self, claims: Mapping[str, object]) -> Role | None:
        """Return the role of a user with these ID token claims; None denies access.

        An address counts only if the provider says it is verified. The more specific entry wins.
        """
        if claims.get("is_logged_in") is not True:
            return None
        exact, domain = {f"{_BY_ID}{claims['sub']}"} if isinstance(claims.get("sub"), str) else set(), set()
        address = claims.get("email")
        # With a second @, two programs may see two different domains; an address is never an id.
        if claims.get("email_verified") is True and isinstance(address, str) and address.count("@") == 1:
            exact |= {_lower(address)} - {address if address.startswith(_BY_ID) else ""}
            domain = {_lower(address[address.index("@") :])}
        for names in (exact, domain):
            if names & {_lower(entry) for entry in self.viewers}:
                return Role.VIEWER
            if names & {_lower(entry) for entry in self.operators}:
                return Role.OPERATOR
        return None


def _lower(entry: str) -> str:
    # An id is compared exactly. Beyond ASCII, several letters have the same lower case.
    return entry.lower() if entry.isascii() and not entry.startswith(_BY_ID) else entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Streamlit's `[auth]` section, and who is allowed."""

    auth: Mapping[str, Any] = field(repr=False)
    allow_list: AllowList

    @property
    def origin(self) -> str:
        """The origin under which the dashboard is opened."""
        return str(self.auth["redirect_uri"]).removesuffix(CALLBACK_PATH)


@dataclass(frozen=True, slots=True)
class UserHeader:
    """The header in which a proxy names the visitor, who may do everything."""

    name: str


def read_login_file(path: Path) -> Login:
    """Read the file of `--login`. Raises LoginError, or SecretFileError if others can read the file."""
    text = read_secret_file(path, "--login")
    if sys.version_info < (3, 11):
        raise LoginError("--login needs Python 3.11 or newer")
    import tomllib

    try:
        content = tomllib.loads(text)
        people = content["dashboard"]
        allow_list = AllowList(
            operators=tuple(people.get("allow", ())), viewers=tuple(people.get("readers", ()))
        )
        auth = content["auth"]
        missing = [name for name in _REQUIRED if not isinstance(auth.get(name), str)]
        if missing:
            raise LoginError(f"[auth] needs {missing[0]}")
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError, LoginError) as error:
        raise LoginError(
            f"--login {str(path)!r}: not an [auth] and a [dashboard] section: {error}"
        ) from error
    provider = urlsplit(auth["server_metadata_url"])
    if not auth["redirect_uri"].endswith(CALLBACK_PATH):
        problem = f"redirect_uri must be the dashboard's URL followed by {CALLBACK_PATH}"
    elif len(auth["cookie_secret"]) < _MINIMUM_COOKIE_SECRET or len(set(auth["cookie_secret"])) < 8:
        problem = f"cookie_secret needs {_MINIMUM_COOKIE_SECRET} random characters: who guesses it can log in as anyone"
    elif provider.scheme != "https" and provider.hostname not in ("localhost", "127.0.0.1", "::1"):
        problem = "server_metadata_url needs https, or someone in between could log in as anyone"
    else:
        return Login(auth=auth, allow_list=allow_list)
    raise LoginError(f"--login {str(path)!r}: {problem}")


class LoginGate:
    """ASGI middleware that checks the login cookie before it serves media files, which Streamlit serves to anyone."""

    def __init__(self, app: AsgiApp, login: Login) -> None:
        # Internal to Streamlit: it has no other way to ask who sent a request that is not a WebSocket.
        from streamlit.auth_util import get_cookie_with_chunks
        from streamlit.web.server.starlette.starlette_app_utils import decode_signed_value
        from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME

        self._app = app
        self._login = login
        self._join = get_cookie_with_chunks
        self._open = decode_signed_value
        self._cookie_name = USER_COOKIE_NAME

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        role = self._role(scope) if scope["type"] == "http" else None
        if scope["type"] == "http" and scope["path"].startswith(_PROTECTED) and role is None:
            await refuse(scope, receive, send, "Log in to see this.")
        else:
            await self._app(with_role(scope, role), receive, send)

    def _role(self, scope: Message) -> Role | None:
        cookies, secret = dict(cookies_of(scope)), self._login.auth["cookie_secret"]

        def signed(name: str) -> bytes | None:
            value = cookies.get(name)
            return None if value is None else self._open(secret, name, value.encode("latin-1"))

        try:
            claims = json.loads(self._join(signed, self._cookie_name) or b"null")
        except ValueError:
            return None
        # Another dashboard with another list may use the same cookie secret.
        if not isinstance(claims, dict) or claims.get("origin") != self._login.origin:
            return None
        return self._login.allow_list.role_of(claims)


class UserHeaderGate:
    """ASGI middleware that refuses a request without exactly one user in the proxy's header."""

    def __init__(self, app: AsgiApp, header: UserHeader) -> None:
        self._app = app
        self._name = header.name.lower().encode("ascii")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        users = [value.strip() for name, value in scope["headers"] if name.lower() == self._name]
        if len(users) == 1 and users[0]:
            await self._app(with_role(scope, Role.OPERATOR), receive, send)
        elif scope["type"] == "http" and scope["path"] == HEALTH_PATH:
            await answer(send, 200, "ok", content_type="text/plain")
        else:
            await refuse(scope, receive, send, "Open this dashboard through its proxy.")
