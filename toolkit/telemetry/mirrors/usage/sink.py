"""The sink that sends usage events about a session's records to a PostHog server."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, Final

import orjson

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.outbox import NotSentError, Outbox
from toolkit.telemetry.mirrors.usage.events import UsageEvent, UsageEventReader
from toolkit.telemetry.mirrors.usage.options import RunSettings, project_key, refused_by, why_not
from toolkit.telemetry.runfolder.records import Record

_REQUEST_TIMEOUT_S: Final = 5.0


class UsageSink:
    """Turns records into events and queues them; sending happens on another thread."""

    name = "usage"

    def __init__(self, events: UsageEventReader, outbox: Outbox[UsageEvent], *, close_s: float) -> None:
        self._events = events
        self._outbox = outbox
        self._close_s = close_s

    def write(self, batch: Sequence[Record]) -> None:
        """Queue the events of `batch`."""
        for record in batch:
            for event in self._events.take(record):
                self._outbox.put(event)

    def close(self) -> None:
        """Wait a limited time for what is still to be sent."""
        self._outbox.close(self._close_s)


def usage_sink(
    options: RunSettings, *, session: int, guard: Guard, environ: Mapping[str, str] | None = None
) -> UsageSink | None:
    """Return the sink if usage reports are enabled, else None; print where they go, or why they are off."""
    environ = os.environ if environ is None else environ
    usage = options.usage_options
    reason = why_not(options, environ)
    if reason is not None:
        guard.say(f"usage reports are off: {reason}")
        return None
    assert usage.host is not None, "else the options are refused"
    guard.say(
        f"anonymous usage reports go to {usage.host}: `telemetry usage --show` prints them, DO_NOT_TRACK=1 stops them"
    )
    outbox = Outbox(
        "usage reports",
        PostHogServer(usage.host, project_key(usage.key_env, environ)).send,
        guard=guard,
        may_send=lambda: refused_by(environ) is None,
    )
    return UsageSink(UsageEventReader(session, environ=environ), outbox, close_s=0.6 * options.close_timeout)


class PostHogServer:
    """Sends one event at a time to the configured server only: a redirect is a failure."""

    def __init__(self, host: str, key: str) -> None:
        self._host = host
        self._key = key
        # Random for each session and stored nowhere, so that it identifies neither user nor run.
        self._distinct_id = str(uuid.uuid4())
        self._opener = urllib.request.build_opener(_NoRedirects)

    def send(self, event: UsageEvent) -> None:
        """Send `event`.

        Raises:
            NotSentError: the server did not accept it; the text has neither its answer nor the key.
        """
        message = {**event.shown(self._distinct_id), "uuid": str(uuid.uuid4())}
        request = urllib.request.Request(  # noqa: S310 - the options allow http and https alone
            f"{self._host.rstrip('/')}/batch/",
            orjson.dumps({"api_key": self._key, "batch": [message]}),
            {"Content-Type": "application/json"},
        )
        try:
            self._opener.open(request, timeout=_REQUEST_TIMEOUT_S).close()
        except urllib.error.HTTPError as error:
            error.close()
            raise NotSentError(f"{self._host} answered {error.code}") from None
        except (OSError, HTTPException) as error:
            raise NotSentError(f"{self._host} was not reached ({type(error).__name__})") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Return None: the answer counts as a failure."""
