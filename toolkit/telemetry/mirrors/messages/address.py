"""Where messages may be sent: by https anywhere, by http to this machine or, if that is allowed, the own network.

A certificate says who answers over https, so that DNS cannot lead a message to another machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from toolkit.telemetry.core.checks import HOST, is_this_machine


class AddressError(ValueError):
    """A refused address; the text shows its host at most, as the rest may be a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAddress:
    """A checked address. Its `repr` hides the path, which is the secret in most of these addresses."""

    url: str = field(repr=False)
    host: str
    shown: str
    """The part that is not secret."""

    @property
    def target(self) -> str:
        """Path and query: what is secret."""
        parts = urlsplit(self.url)
        return f"{parts.path}?{parts.query}" if parts.query else parts.path

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine."""
        return is_this_machine(self.host)


def web_address(url: str, *, allow_private: bool = False) -> WebAddress:
    """Return the checked address `url`; with `allow_private` also one of http on another machine.

    Raises:
        AddressError: it is invalid, or not allowed.
    """
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise AddressError("contains characters that must be percent-encoded")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise AddressError("has an invalid host or port") from error
    if parts.scheme not in ("http", "https") or not host:
        raise AddressError("is not an https address, such as https://hooks.example.org/x")
    if "@" in parts.netloc:
        raise AddressError(f"has a login in front of {host}; use secret_env for a secret")
    if port == 0 or not HOST.fullmatch(host):
        raise AddressError("has an invalid host or port")
    if parts.scheme == "http" and not is_this_machine(host) and not allow_private:
        raise AddressError(
            f"goes to {host} over unencrypted http; it must be https, or in your own network with allow_private: true"
        )
    shown = f"{parts.scheme}://{parts.netloc.lower()}"
    return WebAddress(url=parts._replace(fragment="").geturl(), host=host, shown=shown)
