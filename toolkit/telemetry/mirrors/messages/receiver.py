"""One receiver of messages, with its address and secret from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.telemetry.core.outbox import NotSentError
from toolkit.telemetry.mirrors.messages.message import Message
from toolkit.telemetry.mirrors.messages.options import AddressError, MessageOptions, WebAddress, web_address
from toolkit.telemetry.mirrors.messages.services import SERVICES
from toolkit.telemetry.privacy.configured_secrets import keep_secret, parts_of_address
from toolkit.telemetry.privacy.masking import mask_secrets


class ReceiverOff(OSError):  # noqa: N818 - a state, and the sentence about it
    """A receiver gets no messages; the text says why, without secrets."""


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
