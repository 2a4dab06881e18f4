"""The sink that sends usage events about a session's records to a PostHog server."""

from __future__ import annotations

import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any, Final

import orjson

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.outbox import NotSentError, Outbox
from toolkit.telemetry.mirrors.usage.events import UsageEvents
from toolkit.telemetry.runfolder.records import Record

_REQUEST_TIMEOUT_S: Final = 5.0


class UsageSink:
    """Turns records into events and queues them; the outbox sends them to `host` on another thread."""

    name = "usage"

    def __init__(self, host: str, key: str, *, session: int, guard: Guard, close_s: float) -> None:
        self._url = f"{host.rstrip('/')}/batch/"
        self._host = host
        self._key = key
        self._close_s = close_s
        self._events = UsageEvents(session)
        self._open = urllib.request.build_opener(_NoRedirects).open
        # Random for each session and stored nowhere, so that it identifies neither user nor run.
        self._distinct_id = str(uuid.uuid4())
        self._outbox = Outbox("usage reports", self._send, guard=guard)

    def write(self, batch: Sequence[Record]) -> None:
        """Queue the events of `batch`."""
        for record in batch:
            for event in self._events.take(record):
                self._outbox.put({**event, "distinct_id": self._distinct_id, "uuid": str(uuid.uuid4())})

    def close(self) -> None:
        """Wait a limited time for what is still to be sent."""
        self._outbox.close(self._close_s)

    def _send(self, event: dict[str, Any]) -> None:
        """Send one event. The text of a NotSentError has neither the server's answer nor the key."""
        request = urllib.request.Request(  # noqa: S310 - the options allow http and https alone
            self._url,
            orjson.dumps({"api_key": self._key, "batch": [event]}),
            {"Content-Type": "application/json"},
        )
        try:
            self._open(request, timeout=_REQUEST_TIMEOUT_S).close()
        except urllib.error.HTTPError as error:
            error.close()
            raise NotSentError(f"{self._host} answered {error.code}") from None
        except (OSError, HTTPException) as error:
            raise NotSentError(f"{self._host} was not reached ({type(error).__name__})") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Return None: a redirect is a failure, so that events reach the configured server only."""
