"""Requires a login for images and downloads; Streamlit itself serves them to anyone with the URL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dashboard.access.login_file import Login
from dashboard.access.roles import Role
from dashboard.asgi import AsgiApp, Message, Receive, Send, answer, cookies_of

_PROTECTED = ("/media/", "/run-file", "/_stcore/metrics")
"""Everything else over HTTP is the same for every run and visitor; page contents use the WebSocket."""


class LoginGate:
    """ASGI middleware that checks the login cookie before it serves a page's media files."""

    def __init__(self, app: AsgiApp, login: Login) -> None:
        # Imported here: these names are internal to Streamlit, and only a login needs them.
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
        if scope["type"] == "http" and scope["path"].startswith(_PROTECTED) and self._role(scope) is None:
            await answer(send, 403, "Log in to see this.\n", content_type="text/plain")
        else:
            await self._app(scope, receive, send)

    def _role(self, scope: Message) -> Role | None:
        claims = self._claims(dict(cookies_of(scope)))
        # Another dashboard with another list may use the same cookie secret.
        if claims.get("origin") != self._login.origin:
            return None
        return self._login.allow_list.role_of(claims)

    def _claims(self, cookies: Mapping[str, str]) -> dict[str, Any]:
        secret = self._login.auth["cookie_secret"]

        def signed(name: str) -> bytes | None:
            value = cookies.get(name)
            return None if value is None else self._open(secret, name, value.encode("latin-1"))

        try:
            claims = json.loads(self._join(signed, self._cookie_name) or b"null")
        except ValueError:
            return {}
        return claims if isinstance(claims, dict) else {}
