"""Whom a run sends messages, and about what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from toolkit.core import checks
from toolkit.mirrors.messages.milestones import Milestone, milestone_from
from toolkit.privacy.message_services import SERVICE_BY_NAME

if TYPE_CHECKING:
    from toolkit.mirrors.messages.web_address import WebAddress

OCCASIONS: Final = ("start", "finish", "failure", "stall", "finding", "milestone")
MOST_RECEIVERS: Final = 20
"""Each has a thread of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """One receiver of messages."""

    place: str
    """Where in the options it stands, such as `telemetry.messages[0]`."""
    to: str
    """Which service speaks there."""
    url: WebAddress | None = None
    """Its address, where that is no secret."""
    url_env: str | None = None
    """The environment variable that holds its address."""
    secret_env: str | None = None
    """The environment variable that holds what messages are signed with, or a token."""
    allow_private: bool = False
    """Whether it may be a machine in a private network, such as 10.0.0.5, by http too."""
    when: tuple[str, ...] = OCCASIONS
    """What is worth a message; not called `on`, which YAML takes for true."""
    milestones: tuple[Milestone, ...] = field(default=())
    """Such as "val_loss < 0.1" or "every 1000 steps"."""
    link: str | None = None
    """Where the dashboard is found; stands in each message."""
    per_minute: int = 6
    """Messages that are sent within a minute; of more than that one message tells."""

    @classmethod
    def from_block(cls, name: str, value: Any) -> tuple[MessageOptions, ...]:
        """Return the receivers that the block called `name` lists.

        Raises:
            OptionsError: a key or value is wrong.
        """
        if value is None or value is False:
            return ()
        if isinstance(value, Mapping):
            value = [value]
        if not isinstance(value, (list, tuple)):
            raise checks.wrong(name, value, "a list such as [{to: slack, url_env: SLACK_WEBHOOK}]")
        if len(value) > MOST_RECEIVERS:
            raise checks.OptionsError(
                f"{name} lists {len(value)} receivers; it must be {MOST_RECEIVERS} at most"
            )
        return tuple(cls._one(f"{name}[{i}]", one) for i, one in enumerate(value))

    @classmethod
    def _one(cls, name: str, value: Any) -> MessageOptions:
        _require_known(name, value)
        given = checks.block(name, value, _CHECKS)
        if "to" not in given:
            raise checks.wrong(f"{name}.to", None, f"one of {', '.join(SERVICE_BY_NAME)}")
        service = SERVICE_BY_NAME[given["to"]]
        given["to"] = service.name
        given["when"] = _occasions(f"{name}.when", given.get("when", OCCASIONS))
        texts = checks.texts(f"{name}.milestones", given.get("milestones") or ())
        given["milestones"] = tuple(
            milestone_from(f"{name}.milestones[{i}]", text) for i, text in enumerate(texts)
        )
        if given["milestones"] and "milestone" not in given["when"]:
            raise checks.wrong(
                f"{name}.when", list(given["when"]), "a list with milestone, as milestones has some"
            )
        if given["when"] == ("milestone",) and not given["milestones"]:
            raise checks.wrong(
                f"{name}.milestones", [], 'a list such as ["val_loss < 0.1"] for when: [milestone]'
            )
        url = given.get("url")
        if (url is None) == (given.get("url_env") is None):
            raise checks.OptionsError(
                f"{name} has {'neither url nor' if url is None else 'both url and'} url_env; it must have one of them "
                f"(url_env names an environment variable, which is the place for an address that is a secret)"
            )
        if url is not None:
            given["url"] = _address(f"{name}.url", url, allow_private=given.get("allow_private", False))
        if not service.takes_secret and given.get("secret_env") is not None:
            raise checks.wrong(
                f"{name}.secret_env",
                given["secret_env"],
                f"absent: {given['to']} knows no secret but its address",
            )
        return cls(place=name, **given)

    @classmethod
    def check(cls, name: str, value: Any) -> None:
        """Raise `OptionsError` where the block is wrong."""
        cls.from_block(name, value)


_LINK = re.compile(r"https?://[^\s\x00-\x20\x7f-\xa0@/<>|\"]+(?:/[^\s\x00-\x20\x7f-\xa0<>|\"]*)?")


def _require_known(name: str, value: Any) -> None:
    """Refuse a key that there is not, without showing what stands there: it may be a secret."""
    for key in value if isinstance(value, Mapping) else ():
        if key not in _CHECKS:
            raise checks.OptionsError(
                f"{name}.{str(key)[:100]} is not an option of a receiver; the options are {', '.join(_CHECKS)} "
                f"(a secret stands in an environment variable, which url_env or secret_env names)"
            )


def _occasions(name: str, value: Any) -> tuple[str, ...]:
    occasions = checks.texts(name, value)
    for occasion in occasions:
        if occasion not in OCCASIONS:
            raise checks.wrong(name, occasion, f"among {', '.join(OCCASIONS)}")
    if not occasions:
        raise checks.wrong(name, [], f"a list with some of {', '.join(OCCASIONS)}")
    return occasions


def _address(name: str, url: str, *, allow_private: bool) -> WebAddress:
    # Imported only for whoever has receivers: the rest do not pay for it.
    from toolkit.mirrors.messages.web_address import AddressError, web_address

    try:
        return web_address(url.strip(), allow_private=allow_private)
    except AddressError as error:
        raise checks.OptionsError(
            f"{name} {error}; it must be an https address, an http one of this machine, or with allow_private: true "
            f"either in your own network (not shown: it may be secret)"
        ) from None


def _variable(name: str, value: Any) -> None:
    if value is not None and not checks.is_variable_name(value):
        raise checks.OptionsError(
            f"{name} is no name of an environment variable; it must be one, such as SLACK_WEBHOOK "
            f"(not shown: it may be the secret itself)"
        )


def _url(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise checks.OptionsError(
            f"{name} is a {type(value).__name__} without an address; it must be a text with one"
        )


def _link(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, str) and _LINK.fullmatch(value)):
        raise checks.wrong(name, value, "an address such as https://dashboard.example.org, without a login")


_CHECKS: Final[Mapping[str, checks.Check]] = {
    "to": checks.one_of(*SERVICE_BY_NAME),
    "url": _url,
    "url_env": _variable,
    "secret_env": _variable,
    "allow_private": checks.boolean,
    "when": checks.anything,
    "milestones": checks.anything,
    "link": _link,
    "per_minute": checks.whole(1, 60),
}
