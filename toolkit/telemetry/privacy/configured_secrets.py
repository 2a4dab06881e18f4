"""Secrets from the options: addresses that a run sends to, and the values of the variables they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from toolkit.telemetry.core.formatting import words
from toolkit.telemetry.privacy.harmless_words import is_plain
from toolkit.telemetry.privacy.secret_shapes import looks_generated

SHORTEST: Final = 8
"""Characters of a part of an address that may be a secret by itself."""
_MOST: Final = 1_000

_kept: dict[str, None] = {}


def keep_secrets_of(options: Any, environ: Mapping[str, str]) -> None:
    """Have every masker of this process hide the addresses and keys in these telemetry options."""
    found: set[str] = set()
    given = options.messages
    for receiver in [given] if isinstance(given, Mapping) else given or ():
        if isinstance(receiver, Mapping) and isinstance(receiver.get("url"), str):
            found |= parts_of_address(receiver["url"])
    for receiver in options.message_options:
        found |= parts_of_address(environ.get(receiver.url_env or "", ""))
        found.add(environ.get(receiver.secret_env or "", "").strip())
    if options.otlp is not None:
        found |= credentials_in(options.otlp)
    if options.sends_usage:
        found.add(options.usage_options.key_in(environ))
    keep_secret(found)


def keep_secret(texts: Iterable[str]) -> None:
    """Have every masker of this process hide these texts wherever they appear."""
    for text in texts:
        if len(text) >= SHORTEST and len(_kept) < _MOST:
            _kept[text] = None


def kept_secrets() -> tuple[str, ...]:
    """Return the texts that are hidden because the options name them."""
    return tuple(_kept)


def parts_of_address(address: str) -> set[str]:
    """Return the secrets in an address that messages are sent to: itself, its path, and distinctive parts of that.

    Anyone who knows such an address can post there. If it is only a host, there is nothing to hide.
    """
    address = address.strip()
    try:
        parts = urlsplit(address)
    except ValueError:
        return {address}
    path = parts.path.strip("/")
    if not path and not parts.query and "@" not in parts.netloc:
        return set()
    pieces = [piece for piece in path.split("/") if not is_plain(piece) and piece.lower() not in _USUAL]
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    found = {address, address.partition("://")[2], *credentials_in(address)}
    if pieces:
        # A short word may appear anywhere.
        telling = [piece for piece in pieces if len(piece) >= 12 or any(map(str.isdigit, piece))]
        found |= {target, parts.path, *telling}
    return {text for text in found if len(text) >= SHORTEST}


_USUAL: Final = words(
    """
    services workflows triggers webhook webhooks webhookb2 incomingwebhook hook hooks open-apis bot
    robot send sendmessage messages incoming notify paths invoke
    """
)
"""Common words in the paths of webhooks."""


def credentials_in(address: str) -> set[str]:
    """Return the secrets in an address that is not secret itself: a login, a query, a key in its path."""
    try:
        parts = urlsplit(address.strip())
    except ValueError:
        return set()
    login, _, _ = parts.netloc.rpartition("@")
    values = [value for _, value in parse_qsl(parts.query)]
    found = {login, login.partition(":")[2], unquote(login), unquote(login.partition(":")[2]), *values}
    found |= {piece for piece in parts.path.split("/") if looks_generated(piece)}
    found = {text for text in found if len(text) >= SHORTEST}
    return {*found, address.strip()} if found else set()
