"""Requires a token for HTTP and WebSocket, before the application sees the request."""

from __future__ import annotations

import html
from urllib.parse import parse_qsl, quote, urlencode

from ..asgi import HEALTH_PATH, AsgiApp, Message, Receive, Send, answer, cookies_of, refuse
from .roles import Role, with_role
from .tokens import AccessTokens

ROLE_HEADER = "x-dashboard-role"
"""Tells the application the role of a visitor. A header of this name from outside is dropped."""

TOKEN_PARAMETER = "token"  # noqa: S105 - its name


class TokenGate:
    """ASGI middleware: a token in the URL becomes a cookie; without either the answer is 403 and a form.

    The network guard in front of it has already checked `Host` and `Origin`.
    """

    def __init__(self, app: AsgiApp, tokens: AccessTokens, *, port: int) -> None:
        self._app = app
        self._tokens = tokens
        self._port = port

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on with the role of its cookie, accept its token, or answer 403."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http":
            given = [value for name, value in _query(scope) if name == TOKEN_PARAMETER]
            if given and scope["method"] == "GET":
                await self._accept_token(scope, given[0], send)
                return
        role = self._role(scope)
        if role is not None:
            await self._app(_with_role(scope, role), receive, send)
        elif scope["type"] == "websocket":
            await refuse(scope, receive, send, "")
        elif scope["path"] == HEALTH_PATH:
            await answer(send, 200, "ok", content_type="text/plain")
        elif _comes_from_another_site(scope):
            # A link from another site: the browser withholds the cookie until one of our pages asks.
            await answer(send, 403, _redirect_page(_url(scope)))
        else:
            await _refuse(scope, send, "")

    async def _accept_token(self, scope: Message, token: str, send: Send) -> None:
        role = self._tokens.role_of_token(token)
        if role is None:
            await _refuse(
                scope, send, "Invalid token. A new token is made at each start, unless you provide your own."
            )
            return
        # The network guard adds 'Secure' where the dashboard is served over https.
        cookie = (
            f"{self._cookie_name}={self._tokens.cookie(role, self._port)}; Path=/; HttpOnly; SameSite=Strict"
        )
        headers = [(b"set-cookie", cookie.encode("ascii"))]
        url = _url(scope)
        if _comes_from_another_site(scope) or (_has_no_site_header(scope) and _wants_a_page(scope)):
            # After a redirect the browser would still withhold the new cookie.
            await answer(send, 200, _redirect_page(url), headers)
        else:
            await answer(send, 303, "", [*headers, (b"location", url.encode("ascii"))])

    def _role(self, scope: Message) -> Role | None:
        """Return the highest role of the cookies: another server on this host may have set one with our name."""
        found = {
            self._tokens.role_of_cookie(value, self._port)
            for name, value in cookies_of(scope)
            if name == self._cookie_name
        }
        return next((role for role in (Role.OPERATOR, Role.VIEWER) if role in found), None)

    @property
    def _cookie_name(self) -> str:
        # A browser sends a cookie to every port of a host, so its name has the port.
        return f"telemetry_dashboard_{self._port}"


def _with_role(scope: Message, role: Role) -> Message:
    name = ROLE_HEADER.encode("ascii")
    others = [(key, value) for key, value in scope["headers"] if key.lower() != name]
    return {**with_role(scope, role), "headers": [(name, role.value.encode("ascii")), *others]}


def _query(scope: Message) -> list[tuple[str, str]]:
    try:
        return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    except ValueError:
        return []


def _url(scope: Message) -> str:
    """Return the requested path and query without the token, as ASCII."""
    rest = _rest(scope)
    return f"{_path(scope)}?{urlencode(rest, errors='replace')}" if rest else _path(scope)


def _path(scope: Message) -> str:
    # Two leading slashes would name another server.
    return "/" + quote(scope["path"].lstrip("/\\"), safe="/-._~", errors="replace")


def _rest(scope: Message) -> list[tuple[str, str]]:
    return [(name, value) for name, value in _query(scope) if name != TOKEN_PARAMETER]


def _comes_from_another_site(scope: Message) -> bool:
    sent = {name: value for name, value in scope["headers"] if name.startswith(b"sec-fetch-")}
    return sent.get(b"sec-fetch-site") == b"cross-site" and sent.get(b"sec-fetch-mode") == b"navigate"


def _has_no_site_header(scope: Message) -> bool:
    """Return whether Sec-Fetch-Site is missing: browsers send it to https and localhost only."""
    return all(name != b"sec-fetch-site" for name, _ in scope["headers"])


def _wants_a_page(scope: Message) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


async def _refuse(scope: Message, send: Send, problem: str) -> None:
    if _wants_a_page(scope):
        again = _url(scope) if _has_no_site_header(scope) and not problem else None
        await answer(send, 403, _refusal_page(problem, _path(scope), _rest(scope), again=again))
    else:
        text = f"{problem} {_WHERE_IT_IS}".strip()
        await answer(send, 403, f"{text}\n", content_type="text/plain")


# ---------------------------------------------------------------- pages

_WHERE_IT_IS = (
    "This dashboard requires a token. "
    "Open the link printed in the terminal where it was started: http://…/?token=…"
)

_STYLE = """
:root { color-scheme: light dark; --page: #FFFFFF; --text: #1B1F24; --edge: #D9DEE4; --soft: #F4F6F8;
  --link: #0072B2; --on: #FFFFFF; --bad: #C0341D; }
@media (prefers-color-scheme: dark) { :root { --page: #0F1317; --text: #E6EAEE; --edge: #2C343D;
  --soft: #1A2027; --link: #56B4E9; --on: #0F1317; --bad: #FF8A70; } }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 34rem; margin: 12vh auto 0; padding: 0 1.25rem; }
h1 { font-size: 1.5rem; line-height: 1.25; }
code { background: var(--soft); border-radius: 0.25rem; padding: 0.1rem 0.3rem; font-size: 0.9em;
  overflow-wrap: anywhere; }
form { display: flex; flex-wrap: wrap; gap: 0.5rem; margin: 1.5rem 0; }
input { flex: 1 1 14rem; min-width: 0; font: inherit; color: inherit; background: var(--page);
  border: 1px solid var(--edge); border-radius: 0.5rem; padding: 0.5rem 0.75rem; }
button { font: inherit; font-weight: 600; color: var(--on); background: var(--link); border: 0;
  border-radius: 0.5rem; padding: 0.5rem 1.25rem; cursor: pointer; }
input:focus-visible, button:focus-visible, a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
a { color: var(--link); }
[role=alert] { color: var(--bad); }
"""


def _page(title: str, head: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"{head}<title>{title}</title><style>{_STYLE}</style></head><body><main>{body}</main></body></html>"
    )


def _refusal_page(problem: str, path: str, rest: list[tuple[str, str]], *, again: str | None) -> str:
    """Return the page that asks for the token; `again` is the link for a browser that may have withheld its cookie."""
    kept = "".join(
        f'<input type="hidden" name="{html.escape(name)}" value="{html.escape(value)}">'
        for name, value in rest
    )
    retry = (
        ""
        if again is None
        else f'<p>Already signed in on this browser? <a href="{html.escape(again)}">Open the page again</a>.</p>'
    )
    alert = f'<p role="alert">{html.escape(problem)}</p>' if problem else ""
    return _page(
        "Token required",
        "",
        "<h1>This dashboard requires a token</h1>"
        f"{alert}"
        "<p>Open the link printed in the terminal where the dashboard was started: "
        "<code>http://…/?token=…</code></p>"
        f'<form method="get" action="{html.escape(path)}">{kept}<input type="password" name="token" aria-label="Token" '
        'placeholder="Token" autocomplete="off" required autofocus><button>Open</button></form>'
        f"{retry}"
        "<p>If it was started with <code>--token-file</code> or <code>TELEMETRY_DASHBOARD_TOKEN</code>, "
        "ask the person who started it for the token.</p>",
    )


def _redirect_page(url: str) -> str:
    place = html.escape(url)
    return _page(
        "Training runs",
        f'<meta http-equiv="refresh" content="0;url={place}">',
        f'<p><a href="{place}">Continue to the dashboard</a></p>',
    )
