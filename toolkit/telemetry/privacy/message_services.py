"""The services that messages can be sent to, and what is secret about each.

To add a service, add a line here and a function in `toolkit/telemetry/mirrors/messages/services.py`.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class MessageService(NamedTuple):
    """One service."""

    name: str
    """What `to:` calls it."""
    aliases: tuple[str, ...] = ()
    """What `to:` may also call it."""
    takes_secret: bool = True
    """Whether `secret_env` has a meaning: a token, or a key to sign with."""
    webhook_pattern: str = ""
    """Matches its addresses after https://, if anyone who knows one can post there: they are masked in any text."""


MESSAGE_SERVICES: Final = (
    MessageService(
        "lark",
        aliases=("feishu",),
        webhook_pattern=r"open\.(?:feishu\.cn|larksuite\.com|larkoffice\.com)/open-apis/bot/(?:v[0-9]+/)?hook/",
    ),
    MessageService(
        "slack",
        takes_secret=False,
        webhook_pattern=r"hooks\.slack\.com/(?:services|workflows|triggers)/",
    ),
    MessageService(
        "discord",
        takes_secret=False,
        webhook_pattern=r"(?:\w+\.)?discord(?:app)?\.com/api/(?:v[0-9]+/)?webhooks/",
    ),
    MessageService("ntfy"),
    MessageService("webhook"),
)

SERVICE_BY_NAME: Final = {
    **{service.name: service for service in MESSAGE_SERVICES},
    **{alias: service for service in MESSAGE_SERVICES for alias in service.aliases},
}
"""Each service under every name that `to:` accepts."""
