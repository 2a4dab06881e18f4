"""The services that take messages, each in the form that it wants them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from toolkit.mirrors.messages.services import discord, lark, ntfy, slack, webhook
from toolkit.mirrors.messages.transport_types import Service

SERVICES: Final[Mapping[str, Service]] = {
    "lark": Service(request=lark.request, check=lark.check),
    "slack": Service(request=slack.request, check=slack.check),
    "discord": Service(request=discord.request, check=discord.check),
    "ntfy": Service(request=ntfy.request, check=ntfy.check),
    "webhook": Service(request=webhook.request, check=webhook.check),
}
