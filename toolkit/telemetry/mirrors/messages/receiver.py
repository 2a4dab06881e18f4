"""One receiver of messages, with its address and secret from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from toolkit.telemetry.core.outbox import NotSentError
from toolkit.telemetry.core.post import post
from toolkit.telemetry.mirrors.messages.address import AddressError, WebAddress, web_address
from toolkit.telemetry.mirrors.messages.message import Message
from toolkit.telemetry.mirrors.messages.options import MessageOptions
from toolkit.telemetry.mirrors.messages.services import SERVICES
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.privacy.secret_shapes import MASK

_SHORTEST: Final = 6
"""Characters of a part of an address that may be a secret; `hook` is not."""


class ReceiverOff(OSError):  # noqa: N818 - a state, and the sentence about it
    """A receiver gets no messages; the text says why, without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Where messages go. Its `repr` hides secrets."""

    options: MessageOptions
    address: WebAddress
    secret: str | None = field(default=None, repr=False)

    def send(self, message: Message) -> None:
        """Send a message. Raises NotSentError, without a secret in it, if it was not delivered."""
        service = SERVICES[self.options.to]
        try:
            request = service.request(message, self.secret)
            service.check(post(self.address.url, request.body, request.headers))
        except NotSentError as error:
            error.args = (f"{self.address.shown}: {self._conceal(str(error))}",)
            raise

    def _conceal(self, text: str) -> str:
        """Return `text`, such as a response, without the secrets of this receiver."""
        target = self.address.target
        secrets = {target, self.secret, *target.split("/")}
        known = sorted((one for one in secrets if one and len(one) >= _SHORTEST), key=len, reverse=True)
        if known:
            text = re.sub("|".join(map(re.escape, known)), MASK, text)
        masked: str = Masker().mask(text)
        return masked


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
            named = _shown_name(options.url_env or "")
            raise ReceiverOff(f"the address in {options.place}.url_env ({named}) {error}") from None
    return Receiver(options=options, address=address, secret=secret)


def warning_about(options: MessageOptions) -> str | None:
    """Return a warning where the options themselves hold a secret address."""
    if options.url is None or options.url.is_loopback or not SERVICES[options.to].has_secret_address:
        return None
    return (
        f"{options.place}.url is a secret: anyone who knows this address can post there. "
        f"Put it into an environment variable and name that in {options.place}.url_env"
    )


def _variable(options: MessageOptions, key: str, environ: Mapping[str, str]) -> str:
    variable = getattr(options, key)
    # A secret read from a file may end with its line break.
    value = environ.get(variable, "").strip()
    if not value:
        state = "is empty" if variable in environ else "is not set"
        raise ReceiverOff(f"{options.place}.{key}: the environment variable {_shown_name(variable)} {state}")
    return value


def _shown_name(variable: str) -> str:
    """Return the name of a variable, unless it looks like a secret entered by mistake."""
    is_usual = variable in (variable.upper(), variable.lower()) or "_" in variable
    return variable if is_usual and len(variable) <= 64 else "(not shown: does not look like a name)"
