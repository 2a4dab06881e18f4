"""Requests to runs through the engine: signed here, delivered by the shipper on the run's node."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.fleet.engine import EngineError, RefusedError, UnreachableError, quote
from toolkit.telemetry.fleet.shipping.courier import CLOCK_NOISE_S, DELIVERED, DELIVERIES
from toolkit.telemetry.fleet.signed_requests import REQUEST_TYPES, REQUESTS, key_id_of, request_row
from toolkit.telemetry.runfolder.control import ControlRefused, new_request
from toolkit.telemetry.runs.formatting import clean, clock
from toolkit.telemetry.runs.sources.clickhouse.link import EngineLink
from toolkit.telemetry.runs.sources.clickhouse.list_sql import SILENT_S
from toolkit.telemetry.runs.sources.clickhouse.runs import EngineRun, EngineRuns
from toolkit.telemetry.runs.sources.store_queries import keep_recent
from toolkit.telemetry.runs.store import PENDING, Delivery, Refused

_LOOK_EVERY_S: Final = 1.0
_MAX_RUNS: Final = 200
_MAX_ASKED: Final = 50
_NO_KEY: Final = (
    "This dashboard does not deliver requests to runs: it was started without --request-key. "
    "The run is controlled on its own node."
)


@dataclass(frozen=True, slots=True)
class _Note:
    key_id: str
    state: str
    received: int


class _RunRequests:
    def __init__(self) -> None:
        self.asked: dict[str, float] = {}
        """When each request that was made here expires, by the engine's clock."""
        self.notes: dict[str, _Note] = {}
        """What the courier reported, by request; about itself under ''."""
        self.looked_at = -1e9


class EngineRequests:
    """What was asked of runs, and whether it is delivered. Thread-safe."""

    def __init__(self, link: EngineLink, runs: EngineRuns, key: bytes | None) -> None:
        self._link = link
        self._runs = runs
        self._key = key
        self._lock = threading.RLock()
        self._by_run: dict[str, _RunRequests] = {}
        self._last_asked = 0.0

    def refusal(self, run: EngineRun) -> str | None:
        """Return why requests to a run would not be delivered, as a sentence; None if they would."""
        if self._key is None:
            return _NO_KEY
        if self._link.problem is not None:
            return "The engine does not answer now: nothing can be sent to the run."
        node, note = clean(run.node), self._requests_of(run).notes.get("")
        if note is None:
            return f"{node} does not deliver requests: its shipper runs without --deliver-requests."
        if self._runs.engine_time - note.received > SILENT_S:
            return f"{node} has delivered no requests since {clock(note.received)}."
        if note.state:
            return clean(f"{node} does not deliver requests to this run: {note.state}.")
        if note.key_id != key_id_of(self._key):
            return f"{node} has another request key than this dashboard and would not deliver the request."
        return None

    def ask(self, run: EngineRun, request: Mapping[str, Any], *, by: str) -> str:
        """Sign a request, insert it and return its id.

        Raises:
            Refused: it would not be delivered, or the engine did not take it.
        """
        refusal = self.refusal(run)
        if refusal is not None or self._key is None:
            raise Refused(refusal or _NO_KEY)
        try:
            made = new_request(
                log_every=request.get("log_every"),
                actions=tuple(request.get("actions", ())),
                knobs=request.get("knobs"),
                run_id=run.run_id,
                now=self._engine_clock(),
            )
        except ControlRefused as error:
            raise Refused(error.reason) from error
        row = request_row(made, self._key, by=by, project=run.project, day=run.day)
        try:
            self._link.insert_rows(REQUESTS, REQUEST_TYPES, [row])
        except UnreachableError as error:
            raise Refused(
                f"the engine did not confirm the request, which may be delivered all the same: {clean(str(error))}"
            ) from error
        except EngineError as error:
            raise Refused(f"the engine did not take the request: {clean(str(error))}") from error
        with self._lock:
            keep_recent(self._of(run).asked, made.id, made.expires or 0.0, _MAX_ASKED)
        return made.id

    def delivery(self, run: EngineRun, request_id: str) -> Delivery:
        """Return what is known of a request that the run has not answered."""
        known = self._requests_of(run)
        note, expires = known.notes.get(request_id), known.asked.get(request_id)
        if note is not None and note.state != DELIVERED:
            return Delivery(text=clean(f"not delivered: {note.state}"), is_over=True)
        if note is not None or expires is None:
            return PENDING
        if self._runs.engine_time > expires:
            return Delivery(text=f"expired, {clean(run.node)} did not deliver it", is_over=True)
        return Delivery(text=f"waiting for {clean(run.node)}", is_over=False)

    def _engine_clock(self) -> float:
        """Return the time by the engine's clock, later than that of any request before."""
        ahead = self._runs.clock_ahead_s
        now = time.time() - (0.0 if abs(ahead) <= CLOCK_NOISE_S else ahead)
        with self._lock:
            self._last_asked = max(now, self._last_asked + 0.001)
            return self._last_asked

    def _of(self, run: EngineRun) -> _RunRequests:
        with self._lock:
            known = self._by_run.get(run.run_id) or _RunRequests()
            return keep_recent(self._by_run, run.run_id, known, _MAX_RUNS)

    def _requests_of(self, run: EngineRun) -> _RunRequests:
        """Ask what the courier of a run reported, about once a second; while the engine is silent, as it was."""
        known = self._of(run)
        if time.monotonic() - known.looked_at < _LOOK_EVERY_S:
            return known
        ids = ", ".join(map(quote, ("", *known.asked)))
        try:
            rows = self._link.rows(
                "SELECT id, argMax(key_id, version), argMax(state, version), max(toUInt32(received)) "
                f"FROM {DELIVERIES} WHERE run_id = {quote(run.run_id)} AND id IN ({ids}) GROUP BY id",
                *("String", "String", "String", "UInt32"),
            )
        except RefusedError:
            # Tables that an older version made: no courier can report either.
            rows = []
        except EngineError:
            return known
        known.notes = {request_id: _Note(*note) for request_id, *note in rows}
        known.looked_at = time.monotonic()
        return known
