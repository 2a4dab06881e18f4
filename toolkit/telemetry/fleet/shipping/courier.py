"""Delivers requests from the engine to the runs of this node: checks each signature and writes control.json.

Nothing is kept on the node. A request is delivered if the run has not answered it, control.json is not it already, and
the engine has no note that it was delivered; the run itself never applies an id twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from toolkit.telemetry.fleet.binary_form import types_of
from toolkit.telemetry.fleet.engine import Engine, chunks, quote
from toolkit.telemetry.fleet.shipping.watch import ShippedRun
from toolkit.telemetry.fleet.signed_requests import REQUESTS, SignedRequest, key_id_of
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
from toolkit.telemetry.runfolder.status import RUNNING, STALLED

DELIVERIES: Final = "deliveries"
DELIVERED: Final = "delivered"
"""The state of a request that was delivered; that of another one is the reason why not."""

REPORT_S: Final = 15.0
"""How often it is reported that requests are delivered here."""

MAX_VALID_S: Final = 3600.0
"""A request that is valid for longer is refused: so far back an answer is looked for."""

_ANSWER_WITHIN_S: Final = 600.0
"""A request in control.json, whoever wrote it, holds up the next one for at most this long."""
CLOCK_NOISE_S: Final = 2.0
"""The engine's clock is known to a second: a smaller difference is ignored."""
_MOST_REQUESTS: Final = 1_000
"""So many of a run are looked at, the newest ones."""
_BLOCK_BYTES: Final = 1024 * 1024
_NAMED: Final = CONTROL_CHANGE.encode()

_TYPES: Final = types_of(
    "project String, run_id String, id String, version UInt64, node String, key_id String, state String, created Date"
)


@dataclass(slots=True)
class _KnownRun:
    cursor: Cursor = field(default_factory=Cursor)
    answered: set[str] = field(default_factory=set)
    """The ids of the requests that the run has answered, by its records as far as they were read."""
    delivered: set[str] = field(default_factory=set)
    next_report: float = 0.0
    signed: dict[str, SignedRequest] = field(default_factory=dict)
    """Requests with a valid signature that have not expired long ago."""

    def read_answers(self, run: ShippedRun) -> set[str]:
        """Return `answered`, having read what is new. Raises OSError if the records cannot be read."""
        while True:
            block = read_block(run.found.folder / METRICS_JSONL, self.cursor, max_bytes=_BLOCK_BYTES)
            if _NAMED in block.data:
                for position, line in lines_of(block):
                    record = parse_line(position, line) if _NAMED in line else {}
                    if not isinstance(record, BadLine) and record.get("event") == CONTROL_CHANGE:
                        self.answered.add(str(record.get("id")))
            if block.cursor.offset == self.cursor.offset and not block.replaced:
                return self.answered
            self.cursor = block.cursor


class Courier:
    """Delivers the requests of the runs of one node, one at a time to each; one thread uses it."""

    def __init__(self, key: bytes, node: str, failure: Callable[[str], None]) -> None:
        """Deliver what is signed with `key`; `failure` takes a sentence about what is not delivered."""
        self._key = key
        self._key_id = key_id_of(key)
        self._node = node
        self._failure = failure
        self._known: dict[str, _KnownRun] = {}
        self._said: set[str] = set()
        self._version = 0

    def deliver(self, engine: Engine, runs: Iterable[ShippedRun]) -> None:
        """Deliver the next request to each live run of `runs` that has answered the last.

        Raises:
            EngineError: the engine did not answer.
        """
        live = {run.found.key.run_id: run for run in runs if _is_live(run)}
        if not live:
            return
        self._report(engine, list(live.values()))
        for some in chunks(live):
            now = self._read_requests(engine, {run_id: live[run_id] for run_id in some})
            for run_id in some:
                try:
                    self._deliver_next(engine, live[run_id], now)
                except OSError as error:
                    self._say(f"requests of {live[run_id].found.folder} wait: {error.strerror or error}")

    def _report(self, engine: Engine, runs: Sequence[ShippedRun]) -> None:
        """Let pages know which runs get requests, and why another does not."""
        now = time.monotonic()
        due = []
        for run in runs:
            known = self._known.setdefault(run.found.key.run_id, _KnownRun())
            if now >= known.next_report:
                due.append((run, "", self._refusal(run)))
        self._note(engine, due)
        for run, _, refusal in due:
            self._known[run.found.key.run_id].next_report = now + REPORT_S
            if refusal:
                self._say(f"requests of {run.found.folder} are not delivered: {refusal}")

    def _refusal(self, run: ShippedRun) -> str:
        try:
            require_own_folder(run.found.folder)
        except ControlRefused as refusal:
            return f"{refusal.reason}; the shipper must run as the user who trains"
        except OSError as error:
            return str(error.strerror or error)
        return ""

    def _read_requests(self, engine: Engine, runs: Mapping[str, ShippedRun]) -> float:
        """Keep the signed requests that expire later or expired just now; return the engine's time.

        Whoever can write rows can write many without a signature: they are passed over, and do not count.
        """
        rows = engine.rows(
            "SELECT toUInt32(now()), run_id, substring(id, 1, 256), asked, expires, substring(`by`, 1, 4096), "
            f"substring(body, 1, {MAX_BYTES + 1}), substring(mac, 1, 256) FROM {REQUESTS} "
            f"WHERE run_id IN ({', '.join(map(quote, runs))}) "
            f"AND expires > toUInt32(now()) - {_ANSWER_WITHIN_S:.0f} "
            f"ORDER BY run_id, asked DESC, id LIMIT {_MOST_REQUESTS} BY run_id",
            *("UInt32", "Bytes", "Bytes", "Float64", "Float64", "Bytes", "Bytes", "Bytes"),
        )
        # Without a row there is none that has not expired long ago.
        now = math.inf
        for engine_time, run_id, request_id, asked, expires, by, body, mac in rows:
            now, run = float(engine_time), runs[run_id.decode()]
            request = SignedRequest(
                run_id=run_id, id=request_id, asked=asked, expires=expires, by=by, body=body, mac=mac
            )
            if self._is_signed(run, request):
                self._known[run.found.key.run_id].signed[_text(request_id)] = request
        for known in (self._known[run_id] for run_id in runs):
            known.signed = {
                name: row for name, row in known.signed.items() if row.expires > now - _ANSWER_WITHIN_S
            }
        return now

    def _deliver_next(self, engine: Engine, run: ShippedRun, now: float) -> None:
        """Deliver the oldest open request of a run, unless it still has to answer another."""
        known = self._known[run.found.key.run_id]
        if not known.signed:
            return
        answered = known.read_answers(run)
        unanswered = {
            request_id: request
            for request_id, request in sorted(known.signed.items(), key=lambda item: item[1].asked)
            if request_id not in answered
        }
        if not unanswered:
            return
        noted = self._noted(engine, run, unanswered)
        known.delivered |= {request_id for request_id, state in noted.items() if state == DELIVERED}
        in_file = _in_file(run)
        if in_file is not None and in_file.id not in answered:
            known.delivered.add(in_file.id)
            if time.time() < min(in_file.expires or math.inf, in_file.timestamp + _ANSWER_WITHIN_S):
                return
        ahead = _clock_ahead(now)
        for request_id, row in unanswered.items():
            if request_id in known.delivered:
                if now < row.expires:
                    return
            elif request_id not in noted:
                try:
                    self._hand_over(run, row, now, ahead, in_file)
                except ControlRefused as refusal:
                    self._say(
                        f"request {request_id} to the run {run.found.name} is not delivered: {refusal.reason}"
                    )
                    self._note(engine, [(run, request_id, refusal.reason)])
                    continue
                known.delivered.add(request_id)
                self._note(engine, [(run, request_id, DELIVERED)])
                return

    def _is_signed(self, run: ShippedRun, request: SignedRequest) -> bool:
        if len(request.body) > MAX_BYTES:
            self._say(f"a request to the run {run.found.name} is too large and is not delivered")
            return False
        if not request.is_signed_with(self._key):
            self._say(
                f"a request to the run {run.found.name} has no valid signature and is not delivered: "
                "the dashboard has another key, or someone else wrote it"
            )
            return False
        return True

    def _hand_over(
        self, run: ShippedRun, row: SignedRequest, now: float, ahead: float, before: ControlRequest | None
    ) -> None:
        """Write control.json.

        Raises:
            ControlRefused: the request must not be delivered.
            OSError: the file cannot be written.
        """
        if now >= row.expires:
            raise ControlRefused(f"it expired {now - row.expires:.0f} s ago")
        if not (math.isfinite(row.asked) and 0 < row.expires - row.asked <= MAX_VALID_S):
            raise ControlRefused(f"it must expire within {MAX_VALID_S:.0f} s")
        asked, latest = row.asked + ahead, run.found.manifest.latest if run.found.manifest else None
        if before is not None and latest is not None and asked >= latest.started:
            # Pages on other machines have other clocks: a run refuses what seems older than the request before.
            asked = max(asked, min(before.timestamp, time.time()) + 0.001)
        deliver(
            run.found.folder,
            request_with_body(
                row.body,
                request_id=_text(row.id),
                timestamp=asked,
                expires=row.expires + ahead,
                run_id=row.run_id.decode(),
            ),
        )

    def _say(self, sentence: str) -> None:
        """Say something once: a request is looked at every two seconds."""
        if sentence not in self._said:
            self._said.add(sentence)
            self._failure(sentence)

    def _noted(self, engine: Engine, run: ShippedRun, ids: Iterable[str]) -> dict[str, str]:
        """Return what couriers have noted of these requests."""
        texts = ", ".join(map(quote, ids))
        return dict(
            engine.rows(
                f"SELECT id, argMax(state, version) FROM {DELIVERIES} "
                f"WHERE run_id = {quote(run.found.key.run_id)} AND id IN ({texts}) GROUP BY id",
                *("String", "String"),
            )
        )

    def _note(self, engine: Engine, notes: Sequence[tuple[ShippedRun, str, str]]) -> None:
        """Insert rows of (run, request, state); the request '' is the run itself."""
        if not notes:
            return
        self._version = max(self._version + 1, int(time.time() * 1000))
        rows = [
            (
                *(run.found.key.project, run.found.key.run_id, request_id, self._version),
                *(self._node, self._key_id, state, run.found.key.day),
            )
            for run, request_id, state in notes
        ]
        engine.insert_rows(DELIVERIES, _TYPES, rows)


def _is_live(run: ShippedRun) -> bool:
    report = run.report
    if run.found.is_part or not run.is_listed or report.is_deleted or report.status is None:
        return False
    return report.status.name in (RUNNING, STALLED)


def _in_file(run: ShippedRun) -> ControlRequest | None:
    try:
        return read_request(run.found.folder)
    except ControlRefused:
        # The run refuses it too.
        return None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _clock_ahead(engine_time: float) -> float:
    """Return how far this machine's clock is ahead of the engine's, which gives whole seconds."""
    ahead = time.time() - engine_time - 0.5
    return 0.0 if abs(ahead) <= CLOCK_NOISE_S else ahead
