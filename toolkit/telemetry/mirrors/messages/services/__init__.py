"""The services that take messages, each with its own request format.

A service is a module here with `request(message, secret, now)`, which returns an `HttpRequest`, and, where a status of
200 to 299 may still mean a refusal, `check(response)`, which raises `NotDelivered`. Its line is in
`toolkit/telemetry/privacy/message_services.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from toolkit.telemetry.mirrors.messages.post import Service
from toolkit.telemetry.privacy.message_services import MESSAGE_SERVICES


def _load(name: str) -> Service:
    module: Any = importlib.import_module(f"{__name__}.{name}")
    return Service(request=module.request, check=getattr(module, "check", _accept))


def _accept(_: object) -> None:
    """Accept any status from 200 to 299."""


SERVICES: Final[Mapping[str, Service]] = {service.name: _load(service.name) for service in MESSAGE_SERVICES}
