"""The way out of a network that has only one."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit
from urllib.request import (  # type: ignore[attr-defined]  # the stubs leave out the second
    getproxies_environment,
    proxy_bypass_environment,
)

from toolkit.mirrors.messages.transport_types import NotDelivered
from toolkit.mirrors.messages.web_address import WebAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A proxy that lets a connection through by CONNECT, and sees nothing of what is said in it."""

    host: str
    port: int
    login: str | None
    """What its `Proxy-Authorization` header says."""

    def __repr__(self) -> str:
        return f"<{self.host}:{self.port}>"


def proxy_to(address: WebAddress) -> Proxy | None:
    """Return the proxy that `https_proxy`, or `all_proxy`, names for `address`; None where `no_proxy` excepts it.

    What is not encrypted goes straight to the machine that was looked at: this one, or one in the own network.

    Raises:
        NotDelivered: the variable names something else than a proxy of the usual kind.
    """
    if address.is_loopback or not address.is_encrypted:
        return None
    proxies = getproxies_environment()
    named = proxies.get("https") or proxies.get("all")
    if not named or proxy_bypass_environment(address.host, proxies):
        return None
    try:
        parts = urlsplit(named if "://" in named else f"http://{named}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme != "http" or not host:
        raise NotDelivered("https_proxy names no proxy such as http://proxy:3128", again=False)
    login = None
    if parts.username:
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = f"Basic {base64.b64encode(words.encode()).decode()}"
    return Proxy(host=host, port=port or 80, login=login)
