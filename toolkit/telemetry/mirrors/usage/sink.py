"""The sink that sends usage events about a session's records to a PostHog server."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import orjson

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.outbox import Delivery, NotSentError, Outbox
from toolkit.telemetry.core.post import post
from toolkit.telemetry.mirrors.usage.events import UsageEvents
from toolkit.telemetry.runfolder.records import Record


class UsageSink:
    """Turns records into events and queues them; the outbox sends them to `host` on another thread."""

    name = "usage"

    def __init__(self, host: str, key: str, *, session: int, guard: Guard, close_s: float) -> None:
        self._url = f"{host.rstrip('/')}/batch/"
        self._host = host
        self._key = key
        self._guard = guard
        self._close_s = close_s
        self._events = UsageEvents(session)
        # Random for each session and stored nowhere, so that it identifies neither user nor run.
        self._distinct_id = str(uuid.uuid4())
        self._outbox = Outbox(
            "usage reports", self._send, on_result=self._report, guard=guard, first_pause_s=30.0
        )

    def write(self, batch: Sequence[Record]) -> None:
        """Queue the events of `batch`."""
        for record in batch:
            for event in self._events.take(record):
                self._outbox.put({**event, "distinct_id": self._distinct_id, "uuid": str(uuid.uuid4())})

    def close(self) -> None:
        """Wait a limited time for what is still to be sent."""
        self._outbox.close(time.monotonic() + self._close_s)

    def _send(self, event: dict[str, Any]) -> None:
        body = orjson.dumps({"api_key": self._key, "batch": [event]})
        post(self._url, body, {"Content-Type": "application/json"})

    def _report(self, _: Delivery[dict[str, Any]], failure: NotSentError | None) -> None:
        if failure is not None:
            # Not what the server answers, which may repeat the key.
            why = f"answered {failure.status}" if failure.status else str(failure)
            self._guard.report("sending usage reports", NotSentError(f"{self._host}: {why}"))
