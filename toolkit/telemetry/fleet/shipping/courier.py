"""Delivers requests from the engine to the runs of this node, as control.json.

Nothing is kept on the node. A request is delivered if the run has not answered it, control.json is not it already, and
the engine has no note that it was delivered; the run itself never applies an id twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from toolkit.telemetry.fleet.engine import Engine, chunks, quote
from toolkit.telemetry.fleet.native_form import types_of
from toolkit.telemetry.fleet.shipping.watch import ShippedRun
from toolkit.telemetry.runfolder.control import (
    MAX_BYTES,
    ControlRefused,
    ControlRequest,
    deliver,
    read_request,
    request_with_body,
    require_own_folder,
)
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.reader import BadLine, Cursor, lines_of, parse_line, read_block
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE

REQUESTS: Final = "requests"
DELIVERIES: Final = "deliveries"
DELIVERS: Final = "yes"
"""What is reported of a run to which requests are delivered."""
DELIVERED: Final = "delivered"
"""The state of a request that was delivered; that of another one is the reason why not."""
MAX_VALID_S: Final = 3600.0
"""A request that is valid for longer is refused: so far back an answer is looked for."""
CLOCK_NOISE_S: Final = 2.0
"""The engine's clock is known to a second: a smaller difference is ignored."""

_ANSWER_WITHIN_S: Final = 600.0
"""A request in control.json, whoever wrote it, holds up the next one for at most this long."""
_MOST_REQUESTS: Final = 1_000
"""So many of a run are read, the newest ones."""
_BLOCK_BYTES: Final = 1024 * 1024
_NAMED: Final = CONTROL_CHANGE.encode()
_TYPES: Final = types_of("run_id String, id String, version UInt64, state String, created Date")


class _Row(NamedTuple):
    """A request of the engine: anything may be in it."""

    run_id: str
    now: int
    """The engine's clock."""
    id: str
    asked: float
    expires: float
    body: bytes
    state: str
    """What was noted of it; empty if nothing was."""


def _row(said: tuple[Any, ...]) -> _Row:
    run_id, now, request_id, asked, expires, body, state = said
    return _Row(run_id, now, request_id, float(asked), float(expires), body.encode(), state)


class Courier:
    """Delivers the requests of the runs of one node, one at a time to each; one thread uses it."""

    def __init__(self, failure: Callable[[str], None]) -> None:
        """Have `failure` take a sentence about what is not delivered."""
        self._failure = failure
        self._answers: dict[str, tuple[Cursor, set[str]]] = {}
        """The requests that each run has answered, by its records as far as they were read."""
        self._said: set[str] = set()

    def control(self, run: ShippedRun) -> str:
        """Return DELIVERS, or why this run gets no requests."""
        try:
            require_own_folder(run.found.folder)
        except (ControlRefused, OSError) as error:
            reason = getattr(error, "reason", None) or str(getattr(error, "strerror", None) or error)
            whose = "the shipper must run as the user who trains"
            self._say(f"requests of {run.found.folder} are not delivered: {reason}; {whose}")
            return reason
        return DELIVERS

    def deliver(self, engine: Engine, runs: Iterable[ShippedRun]) -> None:
        """Deliver the next request to each live run of `runs` that has answered the last.

        Raises:
            EngineError: the engine did not answer.
        """
        live = {
            run.found.key.run_id: run
            for run in runs
            if run.report.status is not None and run.report.is_running and run.is_listed
            if not (run.found.is_part or run.report.is_deleted)
        }
        for some in chunks(live):
            ids = ", ".join(map(quote, some))
            rows = engine.rows(
                f"SELECT run_id, toUInt32(now()), id, asked, expires, substring(body, 1, {MAX_BYTES + 1}), state "
                f"FROM {REQUESTS} AS r FINAL "
                f"LEFT JOIN (SELECT run_id, id, state FROM {DELIVERIES} FINAL WHERE run_id IN ({ids})) AS d "
                f"USING (run_id, id) WHERE run_id IN ({ids}) AND expires > toUInt32(now()) - {_ANSWER_WITHIN_S:.0f} "
                "AND length(id) < 256 AND isValidUTF8(id) "
                f"ORDER BY run_id, asked DESC, id LIMIT {_MOST_REQUESTS} BY run_id"
            )
            for run_id, requests in groupby(map(_row, rows), attrgetter("run_id")):
                try:
                    self._deliver_next(engine, live[run_id], [*requests][::-1])
                except OSError as error:
                    self._say(f"requests of {live[run_id].found.folder} wait: {error.strerror or error}")

    def _deliver_next(self, engine: Engine, run: ShippedRun, rows: list[_Row]) -> None:
        """Deliver the oldest open request of a run, unless it still has to answer another."""
        answered, in_file = self._read_answers(run), _in_file(run)
        if in_file is not None and in_file.id not in answered:
            until = min(in_file.expires or math.inf, in_file.timestamp + _ANSWER_WITHIN_S)
            if time.time() < until:
                return
        for row in rows:
            if row.id in answered or row.state not in ("", DELIVERED):
                continue
            if row.state == DELIVERED or (in_file is not None and in_file.id == row.id):
                if row.now < row.expires:
                    return
                continue
            try:
                _hand_over(run, row, in_file)
            except ControlRefused as refusal:
                self._say(
                    f"request {row.id} to the run {run.found.manifest.name} is not delivered: {refusal.reason}"
                )
                _note(engine, run, row, refusal.reason)
            else:
                _note(engine, run, row, DELIVERED)
                return

    def _read_answers(self, run: ShippedRun) -> set[str]:
        """Return the ids of the answered requests, having read what is new. Raises OSError."""
        cursor, answered = self._answers.get(run.found.key.run_id, (Cursor(), set()))
        while True:
            block = read_block(run.found.folder / METRICS_JSONL, cursor, max_bytes=_BLOCK_BYTES)
            for position, line in lines_of(block) if _NAMED in block.data else ():
                record = parse_line(position, line) if _NAMED in line else {}
                if not isinstance(record, BadLine) and record.get("event") == CONTROL_CHANGE:
                    answered.add(str(record.get("id")))
            self._answers[run.found.key.run_id] = (block.cursor, answered)
            if block.cursor.offset == cursor.offset and not block.replaced:
                return answered
            cursor = block.cursor

    def _say(self, sentence: str) -> None:
        """Say something once: a request is read every two seconds."""
        if sentence not in self._said:
            self._said.add(sentence)
            self._failure(sentence)


def _hand_over(run: ShippedRun, row: _Row, before: ControlRequest | None) -> None:
    """Write control.json.

    Raises:
        ControlRefused: the request must not be delivered.
        OSError: the file cannot be written.
    """
    if row.now >= row.expires:
        raise ControlRefused(f"it expired {row.now - row.expires:.0f} s ago")
    if not (math.isfinite(row.asked) and 0 < row.expires - row.asked <= MAX_VALID_S):
        raise ControlRefused(f"it must expire within {MAX_VALID_S:.0f} s")
    # The engine gives whole seconds.
    ahead = time.time() - row.now - 0.5
    ahead = 0.0 if abs(ahead) <= CLOCK_NOISE_S else ahead
    asked, latest = row.asked + ahead, run.found.manifest.latest
    if before is not None and latest is not None and asked >= latest.started:
        # Pages on other machines have other clocks: a run refuses what seems older than the request before.
        asked = max(asked, min(before.timestamp, time.time()) + 0.001)
    request = request_with_body(
        row.body, request_id=row.id, timestamp=asked, expires=row.expires + ahead, run_id=row.run_id
    )
    deliver(run.found.folder, request)


def _note(engine: Engine, run: ShippedRun, row: _Row, state: str) -> None:
    version = int(time.time() * 1000)
    engine.insert_rows(DELIVERIES, _TYPES, [(row.run_id, row.id, version, state, run.found.key.day)])


def _in_file(run: ShippedRun) -> ControlRequest | None:
    try:
        return read_request(run.found.folder)
    except ControlRefused:
        # The run refuses it too.
        return None
