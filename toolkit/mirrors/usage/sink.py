"""The sink that sends usage events about a session's records."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence

from toolkit.core.guard import Guard
from toolkit.mirrors.usage.consent import project_key, why_not
from toolkit.mirrors.usage.options import RunSettings
from toolkit.mirrors.usage.posthog_client import PostHogClient
from toolkit.mirrors.usage.sender import UsageSender
from toolkit.mirrors.usage.usage_events import UsageEventReader
from toolkit.runfolder.records import Record


class UsageSink:
    """Turns records into events and queues them; sending happens on another thread."""

    name = "usage"

    def __init__(self, events: UsageEventReader, sender: UsageSender, *, close_s: float) -> None:
        self._events = events
        self._sender = sender
        self._close_s = close_s

    def write(self, batch: Sequence[Record]) -> None:
        """Queue the events of `batch`."""
        for record in batch:
            for event in self._events.take(record):
                self._sender.put(event)

    def close(self) -> None:
        """Wait a limited time for what is still to be sent."""
        self._sender.close(self._close_s)


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
    # Random for each session and stored nowhere, so that it identifies neither user nor run.
    client = PostHogClient(usage.host, project_key(usage.key_env, environ), str(uuid.uuid4()))
    sender = UsageSender(client.send, guard=guard, environ=environ)
    return UsageSink(UsageEventReader(session, environ=environ), sender, close_s=0.6 * options.close_timeout)
