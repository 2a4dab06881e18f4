"""The `messages:` block: who gets messages, and about what.

Messages go by https anywhere, by http to this machine or, if that is allowed, the own network. A certificate says who
answers over https, so that DNS cannot lead a message to another machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from toolkit.telemetry.core.checks import (
    HOST,
    Check,
    OptionsError,
    boolean,
    is_this_machine,
    one_of,
    optional,
    texts,
    variable_name,
    where,
    whole,
    wrong,
)
from toolkit.telemetry.core.fields import option, read_fields, required
from toolkit.telemetry.mirrors.messages.services import ALIASES, SERVICES

OCCASIONS: Final = ("start", "finish", "failure", "stall", "finding", "milestone")
MOST_RECEIVERS: Final = 20
"""Each has a thread of its own."""

# Printable ASCII without what ends a link or has a meaning in some service's markup, and without a login.
_LINK_FORM: Final = re.compile(r"https?://[!#-;=?A-{}~]+")
_LINK: Final = where(
    lambda value: isinstance(value, str) and _LINK_FORM.fullmatch(value) is not None,
    "an address such as https://dashboard.example.org, without a login",
)


def _service(key: str, value: Any) -> str:
    name: str = one_of(*SERVICES, *ALIASES)(key, value)
    return ALIASES.get(name, name)


def _occasions(key: str, value: Any) -> tuple[str, ...]:
    return tuple(one_of(*OCCASIONS)(key, occasion) for occasion in texts(key, value))


_VARIABLE: Final = optional(variable_name("SLACK_WEBHOOK"))
_ADDRESS: Final = Check(lambda _key, value: value, "an https address")
"""Checked with the other options: whether it may be private is one of them."""


class AddressError(ValueError):
    """A refused address; the text shows its host at most, as the rest may be a secret."""


@dataclass(frozen=True, slots=True)
class WebAddress:
    """A checked address. Its `repr` hides the path, which is the secret in most of these addresses."""

    url: str = field(repr=False)
    shown: str
    """The part that is not secret."""

    @property
    def masked(self) -> str:
        """The address, with a mask for what is secret."""
        return f"{self.shown}/{'***' if len(self.url) > len(self.shown) + 1 else ''}"


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
    return WebAddress(parts._replace(fragment="").geturl(), f"{parts.scheme}://{parts.netloc.lower()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """One receiver of messages."""

    UNKNOWN_HINT: ClassVar[str] = (
        " (a secret belongs in an environment variable, which url_env or secret_env names)"
    )

    place: str = ""
    """Where it is in the options, such as `telemetry.messages[0]`."""
    name: str = ""
    """Its name in records: the service, with a number if there are several."""
    to: str = required(
        "The service that takes the message.", Check(_service, f"one of {', '.join([*SERVICES, *ALIASES])}")
    )
    url: WebAddress | None = option(None, "Its address, if that is not a secret.", optional(_ADDRESS))
    url_env: str | None = option(None, "The environment variable that contains its address.", _VARIABLE)
    secret_env: str | None = option(
        None, "The environment variable that contains the signing secret or token.", _VARIABLE
    )
    allow_private: bool = option(False, "Allow http to another machine, as in your own network.", boolean)
    when: tuple[str, ...] = option(
        # Not called `on`, which YAML reads as true.
        OCCASIONS,
        "What is worth a message.",
        Check(_occasions, f"a list with some of {', '.join(OCCASIONS)}"),
    )
    link: str | None = option(
        None,
        "Address of the dashboard, for a link in each message.",
        optional(_LINK),
    )
    per_minute: int = option(
        6, "Messages per minute; what comes faster is summed up in one message.", whole(1, 60)
    )

    @classmethod
    def from_block(cls, key: str, value: Any) -> tuple[MessageOptions, ...]:
        """Return the receivers that the block `key` lists. Raises OptionsError if a key or value is wrong."""
        if value is None or value is False:
            return ()
        if isinstance(value, Mapping):
            value = [value]
        if not isinstance(value, (list, tuple)):
            raise wrong(key, value, "a list such as [{to: slack, url_env: SLACK_WEBHOOK}]")
        if len(value) > MOST_RECEIVERS:
            raise OptionsError(f"{key} lists {len(value)} receivers; it must be {MOST_RECEIVERS} at most")
        receivers: list[MessageOptions] = []
        for place, given in enumerate(value):
            one = _receiver(f"{key}[{place}]", given)
            number = 1 + sum(other.to == one.to for other in receivers)
            receivers.append(replace(one, name=one.to if number == 1 else f"{one.to}-{number}"))
        return tuple(receivers)


def _receiver(key: str, value: Any) -> MessageOptions:
    one = read_fields(MessageOptions, key, value)
    if (one.url is None) == (one.url_env is None):
        raise OptionsError(
            f"{key} has {'neither url nor' if one.url is None else 'both url and'} url_env; it must have one of them "
            f"(url_env names an environment variable, for an address that is a secret)"
        )
    if not SERVICES[one.to].takes_secret and one.secret_env is not None:
        raise wrong(f"{key}.secret_env", one.secret_env, f"absent: {one.to} has no secret but its address")
    given: Any = one.url
    if given is None:
        return replace(one, place=key)
    if not isinstance(given, str):
        raise OptionsError(
            f"{key}.url is a {type(given).__name__} without an address; it must be a text with one"
        )
    try:
        return replace(one, place=key, url=web_address(given.strip(), allow_private=one.allow_private))
    except AddressError as error:
        raise OptionsError(f"{key}.url {error} (not shown: it may be secret)") from None
