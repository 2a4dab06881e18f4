"""The sink that sends messages about a run's records."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.outbox import Delivery, NotSentError, Outbox
from toolkit.telemetry.mirrors.messages.message import Message, RunState, combine
from toolkit.telemetry.mirrors.messages.options import MessageOptions
from toolkit.telemetry.mirrors.messages.receiver import ReceiverOff, receiver_from
from toolkit.telemetry.mirrors.messages.run_events import RunEventReader
from toolkit.telemetry.mirrors.messages.services import SERVICES
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.runfolder.reader import blocks_of, lines_of, parse_line
from toolkit.telemetry.runfolder.records import MESSAGE, Record
from toolkit.telemetry.runfolder.untrusted import texts_in

_log = logging.getLogger("toolkit.telemetry")

DASHBOARD: Final = "http://localhost:8501"
"""The default address of the dashboard, on the run's own machine."""
DELIVERED: Final = "delivered"
FAILED: Final = "failed"


class MessageSink:
    """Sends messages about one session, and writes a `message` record for each.

    Each record counts once, even if it is read again, and what an earlier session has delivered is not sent again.
    """

    name = "messages"

    def __init__(
        self,
        receivers: Sequence[MessageOptions],
        *,
        run_state: RunState,
        folder: str,
        record_file: Path,
        put: Callable[[str, dict[str, Any]], None],
        guard: Guard,
    ) -> None:
        self._names = folder, run_state.run_name
        self._session = run_state.session
        self._record_file = record_file
        self._put_record = put
        self._guard = guard
        self._receivers = receivers
        self._redactor = Redactor()
        self._events = RunEventReader(run_state, redact=self._redactor.redact)
        self._outboxes: list[tuple[MessageOptions, Outbox[Message]]] = []
        self._delivered: dict[str, set[str]] | None = None
        self._is_concluded = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start a thread for each receiver, and report which are off and why."""
        for options in self._receivers:
            if options.url is not None and SERVICES[options.to].has_secret_address:
                _log.warning(
                    "[telemetry] %s.url is a secret: anyone who knows this address can post there. Put it into an "
                    "environment variable, and name that in url_env",
                    options.place,
                )
            try:
                receiver = receiver_from(options, os.environ)
            except ReceiverOff as error:
                self._guard.report(f"sending messages to {options.name}", error)
                continue
            outbox = Outbox(
                f"messages to {options.name}",
                receiver.send,
                on_result=partial(self._record, options),
                guard=self._guard,
                combine=combine,
                per_minute=options.per_minute,
            )
            # First: what a receiver without a thread does not get is recorded at the end.
            self._outboxes.append((options, outbox))
            # Before there is a message: an interpreter that is shutting down cannot start a thread.
            with self._guard.catch("starting a thread"):
                outbox.start()

    def write(self, batch: Sequence[Record]) -> None:
        """Send messages about the events in `batch`."""
        with self._lock:
            if self._delivered is None:
                self._delivered = {}
                with self._guard.catch("reading which messages were sent before"):
                    self._delivered = already_delivered(self._record_file) if self._session > 1 else {}
            for record in batch:
                if record.get("session") == self._session and not self._is_concluded:
                    for message in self._events.take(record):
                        self._put(message)

    def conclude(
        self, *, status: str, reason: str, failure: Record | None, elapsed_s: float, timeout_s: float
    ) -> None:
        """Send the last message, and wait at most `timeout_s` for what is still to be sent; nothing is sent later."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._is_concluded = True
            end = self._events.end(
                status=status, reason=reason, failure=failure, now=time.time(), elapsed_s=elapsed_s
            )
            self._put(end)
        for _, outbox in self._outboxes:
            outbox.hurry()
        for _, outbox in self._outboxes:
            outbox.close(deadline)

    def close(self) -> None:
        """Send nothing more; `conclude` has sent or given up what there was."""
        for _, outbox in self._outboxes:
            outbox.close(0.0)

    def _put(self, message: Message) -> None:
        """Queue `message` for each receiver that asked for such messages and did not get it in an earlier session."""
        for options, outbox in self._outboxes:
            is_new = (self._delivered or {}).get(options.name, set()).isdisjoint(message.about)
            if is_new and message.occasion in options.when:
                outbox.put(replace(message, link=link_to(self._names, options.link, self._redactor)))

    def _record(
        self, options: MessageOptions, delivery: Delivery[Message], failure: NotSentError | None
    ) -> None:
        self._put_record(MESSAGE, fields_of(options, delivery, failure))
        if failure is not None:
            self._guard.report(f"sending messages to {options.name}", failure)


def fields_of(
    options: MessageOptions, delivery: Delivery[Message], failure: NotSentError | None
) -> dict[str, Any]:
    """Return the fields of the `message` record about a delivery."""
    message = delivery.item
    fields = {
        "global_step": message.run_state.step,
        "receiver": options.name,
        "service": options.to,
        "occasion": message.occasion,
        "status": DELIVERED if failure is None else FAILED,
        "attempts": delivery.attempts,
        "seconds": round(time.monotonic() - delivery.began, 3),
        "reason": None if failure is None else str(failure),
        "tells_of": message.message_count if message.message_count > 1 else None,
        "about": list(message.about),
    }
    return {name: value for name, value in fields.items() if value is not None}


def link_to(names: tuple[str, str], link: str | None, redactor: Redactor) -> str:
    """Return the dashboard's address of a run: `link`, with {run} replaced by the folder's name, or on its own machine.

    `names` are those of the folder and the run; if one of them is private, the link leads to the list of runs.
    """
    is_plain = all(redactor.redact_text(name) == name for name in names)
    run = quote(names[0], safe="") if is_plain else ""
    if link is not None:
        return link.replace("{run}", run)
    return f"{DASHBOARD}/overview?run={run}" if run else DASHBOARD


def already_delivered(record_file: Path) -> dict[str, set[str]]:
    """Return the ids of the events that `record_file` reports as delivered to each receiver.

    Raises:
        OSError: the file cannot be read.
    """
    delivered: dict[str, set[str]] = {}
    for block in blocks_of(record_file):
        for position, line in lines_of(block):
            # Most lines are only searched for a word, so this takes no longer than reading the file.
            record = parse_line(position, line) if b'"about"' in line else None
            if isinstance(record, dict) and record.get("event") == MESSAGE:
                about = texts_in(record.get("about")) if record.get("status") == DELIVERED else ()
                delivered.setdefault(str(record.get("receiver")), set()).update(about)
    return delivered
