"""One receiver of messages, with its address and secret taken from the environment."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolkit.mirrors.messages.milestones import Milestone
from toolkit.mirrors.messages.options import MessageOptions
from toolkit.mirrors.messages.web_address import (
    AddressError,
    WebAddress,
    is_secret_by_itself,
    web_address,
)
from toolkit.privacy.masking import Masker
from toolkit.privacy.secret_shapes import MASK


class ReceiverOff(OSError):  # noqa: N818 - a state, and the sentence about it
    """A receiver gets no messages; the sentence says why, and shows no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Where messages go, which, and how many. Its `repr` shows no secret."""

    name: str
    """What records call it: its service, with a number where there are several."""
    service: str
    address: WebAddress
    secret: str | None
    when: tuple[str, ...]
    milestones: tuple[Milestone, ...]
    link: str | None
    per_minute: int

    def __repr__(self) -> str:
        return f"<{self.name} at {self.address.shown}>"

    def conceal(self, text: str) -> str:
        """Return `text`, which somebody else wrote, without what is secret about this receiver."""
        secrets = {self.address.target, self.secret, *self.address.target.split("/")}
        known = sorted((one for one in secrets if one and len(one) >= _SHORTEST), key=len, reverse=True)
        if known:
            text = re.sub("|".join(map(re.escape, known)), MASK, text)
        masked: str = Masker().mask(text)
        return masked


_SHORTEST = 6
"""Letters of a piece of an address that may be a secret; `hook` is none."""


def names_of(receivers: Sequence[MessageOptions]) -> list[str]:
    """Return what records call `receivers`: slack, or slack-2 for the second of them."""
    seen: Counter[str] = Counter()
    names = []
    for receiver in receivers:
        seen[receiver.to] += 1
        names.append(receiver.to if seen[receiver.to] == 1 else f"{receiver.to}-{seen[receiver.to]}")
    return names


def receiver_from(options: MessageOptions, name: str, environ: Mapping[str, str]) -> Receiver:
    """Return the receiver that `options` state.

    Raises:
        ReceiverOff: a variable that they name is not set, or holds no address.
    """
    return Receiver(
        name=name,
        service=options.to,
        address=_address(options, environ),
        secret=_variable(options, "secret_env", environ) if options.secret_env else None,
        when=options.when,
        milestones=options.milestones,
        link=options.link,
        per_minute=options.per_minute,
    )


def warning_about(options: MessageOptions) -> str | None:
    """Return what is to be said of a secret that stands in the options themselves."""
    if options.url is None or not is_secret_by_itself(options.to, options.url):
        return None
    return (
        f"{options.place}.url is an address that anybody who knows it can write to: "
        f"put it into an environment variable and name that in {options.place}.url_env"
    )


def _address(options: MessageOptions, environ: Mapping[str, str]) -> WebAddress:
    if options.url is not None:
        return options.url
    try:
        return web_address(_variable(options, "url_env", environ), allow_private=options.allow_private)
    except AddressError as error:
        named = _shown_name(options.url_env or "")
        raise ReceiverOff(f"what {options.place}.url_env names ({named}) {error}") from None


def _variable(options: MessageOptions, key: str, environ: Mapping[str, str]) -> str:
    variable = getattr(options, key)
    # A line break at the end of a secret is the file's that it came from.
    value = environ.get(variable, "").strip()
    if not value:
        state = "is empty" if variable in environ else "is not set"
        raise ReceiverOff(
            f"the environment variable that {options.place}.{key} names {state}: {_shown_name(variable)}"
        )
    return value


def _shown_name(variable: str) -> str:
    """Return the name of a variable, unless it looks like a secret that somebody put there instead of one."""
    is_usual = variable in (variable.upper(), variable.lower()) or "_" in variable
    return variable if is_usual and len(variable) <= 64 else "(not shown: it does not look like a name)"
