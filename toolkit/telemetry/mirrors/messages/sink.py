"""The sink that sends messages about a run's records."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.outbox import NotSentError
from toolkit.telemetry.mirrors.messages.delivery import DELIVERED, FAILED
from toolkit.telemetry.mirrors.messages.message import Message, RunState
from toolkit.telemetry.mirrors.messages.options import MessageOptions
from toolkit.telemetry.mirrors.messages.receiver import ReceiverOff, receiver_from, warning_about
from toolkit.telemetry.mirrors.messages.run_events import RunEventReader
from toolkit.telemetry.mirrors.messages.sender import Sender
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.runfolder.reader import blocks_of, lines_of, parse_line
from toolkit.telemetry.runfolder.records import MESSAGE, Record
from toolkit.telemetry.runfolder.untrusted import texts_in

_log = logging.getLogger("toolkit.telemetry")

DASHBOARD: Final = "http://localhost:8501"
"""The default address of the dashboard, on the run's own machine."""
_DELIVERED: Final = (MESSAGE, DELIVERED)


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
        self._put = put
        self._guard = guard
        self._receivers = receivers
        self._redactor = Redactor()
        self._events = RunEventReader(
            run_state,
            redact=self._redactor.redact,
            milestones=[milestone for one in receivers for milestone in one.milestones],
        )
        self._senders: list[Sender] = []
        self._delivered: dict[str, set[str]] | None = None
        self._last_seq = -1
        self._is_concluded = False
        self._lock = threading.Lock()
        self._off: list[tuple[str, ReceiverOff]] = []
        for options in receivers:
            try:
                receiver = receiver_from(options, os.environ)
            except ReceiverOff as error:
                self._off.append((options.name, error))
            else:
                self._senders.append(Sender(receiver, report=self._record, guard=guard))

    def start(self) -> None:
        """Start sending, and report which receivers are off and why."""
        for options in self._receivers:
            if (warning := warning_about(options)) is not None:
                _log.warning("[telemetry] %s", warning)
        for name, error in self._off:
            self._guard.report(f"sending messages to {name}", error)
        for sender in self._senders:
            sender.start()

    def write(self, batch: Sequence[Record]) -> None:
        """Send messages about the events in `batch`."""
        with self._lock:
            if self._delivered is None:
                self._delivered = {}
                with self._guard.catch("reading which messages were sent before"):
                    self._delivered = already_delivered(self._record_file) if self._session > 1 else {}
            for record in batch:
                seq = record.get("seq")
                is_ours = record.get("session") == self._session
                if is_ours and isinstance(seq, int) and seq > self._last_seq:
                    self._last_seq = seq
                    for message in self._events.take(record):
                        self._send(message)

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
            last = [self._for(sender, end) for sender in self._senders]
        for sender, message in zip(self._senders, last, strict=True):
            sender.hurry(message, deadline)
        for sender in self._senders:
            sender.give_up(deadline)

    def close(self) -> None:
        """Stop the senders; `conclude` has sent or given up what they had to send."""
        for sender in self._senders:
            sender.give_up(0.0)

    def _send(self, message: Message) -> None:
        for sender in () if self._is_concluded else self._senders:
            delivered = (self._delivered or {}).get(sender.receiver.options.name, set())
            if delivered.isdisjoint(message.about) and (own := self._for(sender, message)) is not None:
                sender.put(own)

    def _for(self, sender: Sender, message: Message) -> Message | None:
        """Return `message` with the receiver's link; None if it did not ask for such messages."""
        options = sender.receiver.options
        is_wanted = message.milestone is None or message.milestone in options.milestones
        if message.occasion not in options.when or not is_wanted:
            return None
        return replace(message, link=link_to(self._names, options.link, self._redactor))

    def _record(self, fields: dict[str, Any]) -> None:
        self._put(MESSAGE, fields)
        if fields["status"] == FAILED:
            self._guard.report(f"sending messages to {fields['receiver']}", NotSentError(fields["reason"]))


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
            if isinstance(record, dict) and (record.get("event"), record.get("status")) == _DELIVERED:
                delivered.setdefault(str(record.get("receiver")), set()).update(texts_in(record.get("about")))
    return delivered
