"""One receiver of messages: its address and secret, and how a message gets there.

Messages go by https anywhere, by http to this machine or, if that is allowed, the own network. A certificate says who
answers over https, so that DNS cannot lead a message to another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolkit.telemetry.core.checks import HOST, is_this_machine
from toolkit.telemetry.core.outbox import NotSentError
from toolkit.telemetry.mirrors.messages.message import Message
from toolkit.telemetry.mirrors.messages.services import SERVICES
from toolkit.telemetry.privacy.configured_secrets import keep_secret, parts_of_address
from toolkit.telemetry.privacy.masking import mask_secrets

if TYPE_CHECKING:
    from toolkit.telemetry.mirrors.messages.options import MessageOptions


class AddressError(ValueError):
    """A refused address; the text shows its host at most, as the rest may be a secret."""


class ReceiverOff(OSError):  # noqa: N818 - a state, and the sentence about it
    """A receiver gets no messages; the text says why, without secrets."""


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


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where messages go. Its `repr` hides secrets."""

    options: MessageOptions
    address: WebAddress
    secret: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Have the secrets masked wherever they appear, as in the response of a service."""
        keep_secret({*parts_of_address(self.address.url), self.secret or ""})

    def send(self, message: Message) -> None:
        """Send a message. Raises NotSentError, without a secret in it, if it was not delivered."""
        # Imported where something is sent: the HTTP client is many modules.
        from toolkit.telemetry.core.post import post

        service = SERVICES[self.options.to]
        try:
            body, headers = service.request(message, self.secret)
            service.check(post(self.address.url, body, headers))
        except NotSentError as error:
            error.args = (f"{self.address.shown}: {mask_secrets(str(error))}",)
            raise


def receiver_from(options: MessageOptions, environ: Mapping[str, str]) -> Receiver:
    """Return the receiver that `options` describe.

    Raises:
        ReceiverOff: an environment variable is not set, or does not hold an address.
    """
    secret = _variable(options, "secret_env", environ) if options.secret_env else None
    address = options.url
    if address is None:
        try:
            address = web_address(_variable(options, "url_env", environ), allow_private=options.allow_private)
        except AddressError as error:
            raise ReceiverOff(f"the address in the variable of {options.place}.url_env {error}") from None
    return Receiver(options, address, secret)


def _variable(options: MessageOptions, key: str, environ: Mapping[str, str]) -> str:
    # A secret read from a file may end with its line break.
    value = environ.get(getattr(options, key), "").strip()
    if not value:
        # Not its name: it may be the secret itself, entered there by mistake.
        raise ReceiverOff(f"the environment variable that {options.place}.{key} names is not set or empty")
    return value
