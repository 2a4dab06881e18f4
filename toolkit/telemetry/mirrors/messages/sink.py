"""The sink that sends messages about a run's records."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.mirrors.messages.delivery import DELIVERED, FAILED, Delivery
from toolkit.telemetry.mirrors.messages.message import Message
from toolkit.telemetry.mirrors.messages.options import MessageOptions
from toolkit.telemetry.mirrors.messages.receiver import (
    Receiver,
    ReceiverOff,
    names_of,
    receiver_from,
    warning_about,
)
from toolkit.telemetry.mirrors.messages.run_events import RunEvent, RunEventReader
from toolkit.telemetry.mirrors.messages.sender import Sender
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.runfolder.reader import blocks_of, lines_of, parse_line
from toolkit.telemetry.runfolder.records import MESSAGE, Record
from toolkit.telemetry.runfolder.untrusted import texts_in

_log = logging.getLogger("toolkit.telemetry")

DASHBOARD: Final = "http://localhost:8501"
"""The default address of the dashboard, on the run's own machine."""


_MESSAGE_MARK: Final = b'"message"'


class MessageNotSent(OSError):  # noqa: N818 - it says what happened
    """A message was not delivered; the text says why, without secrets."""


class MessageSink:
    """Sends messages about one session, and writes a `message` record for each.

    Each record counts once, even if it is read again, and what an earlier session has delivered is not sent again.
    """

    name = "messages"

    def __init__(
        self,
        receivers: Sequence[MessageOptions],
        *,
        run_name: str,
        run_id: str,
        project: str,
        folder: str,
        session: int,
        record_file: Path,
        session_start: int,
        put: Callable[[str, dict[str, Any]], None],
        guard: Guard,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._options = receivers
        self._folder = folder
        self._session = session
        self._record_file = record_file
        self._session_start = session_start
        self._put = put
        self._guard = guard
        self._events = RunEventReader(
            run_name=run_name,
            run_id=run_id,
            project=project,
            session=session,
            milestones=[milestone for receiver in receivers for milestone in receiver.milestones],
        )
        self._senders, self._off = self._make_senders(os.environ if environ is None else environ)
        self._redactor = Redactor(environ=environ)
        self._delivered: dict[str, set[str]] | None = None
        self._last_seq = -1
        self._is_concluded = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start sending, and report which receivers are off and why."""
        for options in self._options:
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
                self._delivered = self._delivered_before()
            for record in batch:
                seq = record.get("seq")
                if (
                    not isinstance(seq, int)
                    or seq <= self._last_seq
                    or record.get("session") != self._session
                ):
                    continue
                self._last_seq = seq
                for event in self._events.take(record):
                    self._send(event)

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
            last = [self._message(end, sender.receiver) for sender in self._senders]
        for sender, message in zip(self._senders, last, strict=True):
            sender.hurry(message, deadline)
        for sender in self._senders:
            sender.give_up(deadline)

    def close(self) -> None:
        """Stop the senders; `conclude` has sent or given up what they had to send."""
        for sender in self._senders:
            sender.give_up(0.0)

    def _make_senders(self, environ: Mapping[str, str]) -> tuple[list[Sender], list[tuple[str, ReceiverOff]]]:
        senders, off = [], []
        for options, name in zip(self._options, names_of(self._options), strict=True):
            try:
                receiver = receiver_from(options, name, environ)
            except ReceiverOff as error:
                off.append((name, error))
            else:
                senders.append(Sender(receiver, report=self._record, guard=self._guard))
        return senders, off

    def _delivered_before(self) -> dict[str, set[str]]:
        if self._session > 1:
            with self._guard.catch("reading which messages were sent before"):
                return already_delivered(self._record_file, self._session_start)
        return {}

    def _send(self, event: RunEvent) -> None:
        if self._is_concluded:
            return
        for sender in self._senders:
            was_delivered = event.name in (self._delivered or {}).get(sender.receiver.name, ())
            if not was_delivered and (message := self._message(event, sender.receiver)) is not None:
                sender.put(message)

    def _message(self, event: RunEvent, receiver: Receiver) -> Message | None:
        """Return the message about `event` for `receiver`; None if it did not ask for such events."""
        if event.occasion not in receiver.when:
            return None
        if event.milestone is not None and event.milestone not in receiver.milestones:
            return None
        names = (self._folder, event.run_state.run_name)
        return event.to_message(self._redactor.redact, link=link_to(names, receiver.link, self._redactor))

    def _record(self, delivery: Delivery) -> None:
        self._put(MESSAGE, delivery.to_fields())
        if delivery.status == FAILED:
            self._guard.report(f"sending messages to {delivery.receiver}", MessageNotSent(delivery.reason))


def link_to(names: tuple[str, str], link: str | None, redactor: Redactor) -> str:
    """Return the dashboard's address of a run: `link`, with {run} replaced by the folder's name, or on its own machine.

    `names` are those of the folder and the run; if one of them is private, the link leads to the list of runs.
    """
    is_plain = all(redactor.redact_text(name) == name for name in names)
    run = quote(names[0], safe="") if is_plain else ""
    if link is not None:
        return link.replace("{run}", run)
    return f"{DASHBOARD}/overview?run={run}" if run else DASHBOARD


def already_delivered(record_file: Path, until: int) -> dict[str, set[str]]:
    """Return the ids of the events delivered to each receiver, from the records of `record_file` before byte `until`.

    Most lines are only searched for one word, so this takes no longer than reading the file.

    Raises:
        OSError: the file cannot be read.
    """
    delivered: dict[str, set[str]] = {}
    for block in blocks_of(record_file):
        if block.start >= until:
            break
        for position, line in lines_of(block) if _MESSAGE_MARK in block.data else ():
            record = parse_line(position, line) if _MESSAGE_MARK in line and b'"about"' in line else None
            if not isinstance(record, dict) or record.get("event") != MESSAGE:
                continue
            receiver = record.get("receiver")
            if record.get("status") == DELIVERED and isinstance(receiver, str) and position < until:
                delivered.setdefault(receiver, set()).update(texts_in(record.get("about")))
    return delivered
