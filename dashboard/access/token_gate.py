"""Lets in who has a token, over HTTP and WebSocket, before the application sees anything of them."""

from __future__ import annotations

import html
from urllib.parse import parse_qsl, quote, urlencode

from dashboard.access.roles import Rights
from dashboard.access.tokens import Keys
from dashboard.asgi import AsgiApp, Message, Receive, Send, answer, cookies_of, refuse_socket

RIGHTS_HEADER = "x-dashboard-rights"
"""How the application learns what a visitor may do. Whatever a visitor sends by this name is thrown away."""

TOKEN_PARAMETER = "token"  # noqa: S105 - the name of it


class TokenGate:
    """ASGI middleware: a token in the address becomes a cookie, and without either there is only a page that says so.

    It stands behind the network guard, which has already settled whose pages talk to us and under which name.
    """

    def __init__(self, app: AsgiApp, keys: Keys, *, port: int) -> None:
        self._app = app
        self._keys = keys
        self._port = port

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on with the rights of its cookie, take its token, or answer 403."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http":
            given = [value for name, value in _query(scope) if name == TOKEN_PARAMETER]
            if given and scope["method"] == "GET":
                await self._take_token(scope, given[0], send)
                return
        rights = self._rights(scope)
        if rights is not None:
            await self._app(_with_rights(scope, rights), receive, send)
        elif scope["type"] == "websocket":
            await refuse_socket(receive, send)
        elif _comes_from_another_site(scope):
            # A link in a message: the browser keeps the cookie back until a page of ours asks.
            await answer(send, 403, _onward_page(_url(scope)))
        else:
            await _refuse(scope, send, "")

    async def _take_token(self, scope: Message, token: str, send: Send) -> None:
        rights = self._keys.rights_of_token(token)
        if rights is None:
            await _refuse(
                scope,
                send,
                "That token does not open this dashboard. "
                "It is another one after each start, unless one of your own was given.",
            )
            return
        # 'secure' is added by the guard, which knows whether people come by https.
        cookie = (
            f"{self._cookie_name}={self._keys.cookie(rights, self._port)}; Path=/; HttpOnly; SameSite=Strict"
        )
        headers = [(b"set-cookie", cookie.encode("ascii"))]
        url = _url(scope)
        if _comes_from_another_site(scope) or (_says_no_site(scope) and _wants_a_page(scope)):
            # After a redirect the browser would still keep the new cookie back.
            await answer(send, 200, _onward_page(url), headers)
        else:
            await answer(send, 303, "", [*headers, (b"location", url.encode("ascii"))])

    def _rights(self, scope: Message) -> Rights | None:
        """Return the most that any of the cookies allows: another server on this host may have set one of this name."""
        found = {
            self._keys.rights_of_cookie(value, self._port)
            for name, value in cookies_of(scope)
            if name == self._cookie_name
        }
        return next((rights for rights in (Rights.STEER, Rights.LOOK) if rights in found), None)

    @property
    def _cookie_name(self) -> str:
        # A browser sends a cookie to every port of a host, so each server has one of its own.
        return f"telemetry_dashboard_{self._port}"


def _with_rights(scope: Message, rights: Rights) -> Message:
    name = RIGHTS_HEADER.encode("ascii")
    others = [(key, value) for key, value in scope["headers"] if key.lower() != name]
    return {**scope, "headers": [(name, rights.value.encode("ascii")), *others]}


def _query(scope: Message) -> list[tuple[str, str]]:
    try:
        return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    except ValueError:
        return []


def _url(scope: Message) -> str:
    """Return where the request wanted to go on this server, without the token, as plain ASCII."""
    rest = _rest(scope)
    return f"{_path(scope)}?{urlencode(rest, errors='replace')}" if rest else _path(scope)


def _path(scope: Message) -> str:
    # Two slashes at the front would name another server.
    return "/" + quote(scope["path"].lstrip("/\\"), safe="/-._~", errors="replace")


def _rest(scope: Message) -> list[tuple[str, str]]:
    return [(name, value) for name, value in _query(scope) if name != TOKEN_PARAMETER]


def _comes_from_another_site(scope: Message) -> bool:
    said = {name: value for name, value in scope["headers"] if name.startswith(b"sec-fetch-")}
    return said.get(b"sec-fetch-site") == b"cross-site" and said.get(b"sec-fetch-mode") == b"navigate"


def _says_no_site(scope: Message) -> bool:
    """Say whether it stays open where the request comes from: browsers tell that to https and to localhost alone."""
    return all(name != b"sec-fetch-site" for name, _ in scope["headers"])


def _wants_a_page(scope: Message) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


async def _refuse(scope: Message, send: Send, trouble: str) -> None:
    if _wants_a_page(scope):
        again = _url(scope) if _says_no_site(scope) and not trouble else None
        await answer(send, 403, _refusal_page(trouble, _path(scope), _rest(scope), again=again))
    else:
        words = f"{trouble} {_WHERE_IT_IS}".strip()
        await answer(send, 403, f"{words}\n", content_type="text/plain")


# ---------------------------------------------------------------- pages

_WHERE_IT_IS = (
    "This dashboard asks for a token. It stands in the terminal where the dashboard was started, "
    "as an address to open: http://…/?token=…"
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


def _refusal_page(trouble: str, path: str, rest: list[tuple[str, str]], *, again: str | None) -> str:
    """Return the page that asks for the token; `again` is where a browser goes that may only hold its cookie back."""
    kept = "".join(
        f'<input type="hidden" name="{html.escape(name)}" value="{html.escape(value)}">'
        for name, value in rest
    )
    retry = (
        ""
        if again is None
        else f'<p>You came by a link, and this browser has been let in before? <a href="{html.escape(again)}">'
        "Open it again from here</a>.</p>"
    )
    alert = f'<p role="alert">{html.escape(trouble)}</p>' if trouble else ""
    return _page(
        "Token needed",
        "",
        "<h1>This dashboard asks for a token</h1>"
        f"{alert}"
        "<p>It stands in the terminal where the dashboard was started, as an address to open: "
        "<code>http://…/?token=…</code></p>"
        f'<form method="get" action="{html.escape(path)}">{kept}<input type="password" name="token" aria-label="Token" '
        'placeholder="Token" autocomplete="off" required autofocus><button>Open</button></form>'
        f"{retry}"
        "<p>Where one was chosen with <code>--token-file</code> or <code>TELEMETRY_DASHBOARD_TOKEN</code>, "
        "it is that one; who started the dashboard knows it.</p>",
    )


def _onward_page(url: str) -> str:
    place = html.escape(url)
    return _page(
        "Training runs",
        f'<meta http-equiv="refresh" content="0;url={place}">',
        f'<p><a href="{place}">Go on to the dashboard</a></p>',
    )
