"""Requests to runs through the engine, delivered by the shipper on the run's node."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from toolkit.telemetry.fleet.engine import EngineError, UnreachableError, quote
from toolkit.telemetry.fleet.native_form import types_of
from toolkit.telemetry.fleet.shipping.courier import CLOCK_NOISE_S, DELIVERED, DELIVERIES, DELIVERS, REQUESTS
from toolkit.telemetry.runfolder.control import ControlRefused, encode_body, new_request
from toolkit.telemetry.runs.formatting import clean, clock
from toolkit.telemetry.runs.sources.clickhouse.link import EngineLink
from toolkit.telemetry.runs.sources.clickhouse.list_sql import SILENT_S
from toolkit.telemetry.runs.sources.clickhouse.runs import EngineRun, EngineRuns
from toolkit.telemetry.runs.store import PENDING, Delivery, Refused

_TYPES: Final = types_of(
    "run_id String, id String, asked Float64, expires Float64, by String, body String, created Date"
)
_MAX_BY_CHARS: Final = 256


class EngineRequests:
    """What is asked of runs, and whether it is delivered. Thread-safe."""

    def __init__(self, link: EngineLink, runs: EngineRuns) -> None:
        self._link = link
        self._runs = runs
        self._lock = threading.Lock()
        self._last_asked = 0.0

    def refusal(self, run: EngineRun) -> str | None:
        """Return why requests to a run would not be delivered, as a sentence; None if they would."""
        node = clean(run.node)
        if self._link.problem is not None:
            return "The engine does not answer now: nothing can be sent to the run."
        if not run.control:
            return f"{node} does not deliver requests: its shipper runs without --deliver-requests."
        if self._runs.engine_time - run.received > SILENT_S:
            return f"{node} has delivered no requests since {clock(run.received)}."
        if run.control != DELIVERS:
            return clean(f"{node} does not deliver requests to this run: {run.control}.")
        return None

    def ask(self, run: EngineRun, request: Mapping[str, Any], *, by: str) -> str:
        """Insert a request and return its id.

        Raises:
            Refused: it would not be delivered, or the engine did not take it.
        """
        refusal = self.refusal(run)
        if refusal is not None:
            raise Refused(refusal)
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
        times = (made.timestamp, made.expires)
        row = (run.run_id, made.id, *times, by[:_MAX_BY_CHARS], encode_body(made), run.day)
        try:
            self._link.insert_rows(REQUESTS, _TYPES, [row])
        except UnreachableError as error:
            raise Refused(
                f"the engine did not confirm the request, which may be delivered all the same: {clean(str(error))}"
            ) from error
        except EngineError as error:
            raise Refused(f"the engine did not take the request: {clean(str(error))}") from error
        return made.id

    def delivery(self, run: EngineRun, request_id: str) -> Delivery:
        """Return what is known of a request that the run has not answered; while the engine is silent, nothing."""
        wanted = f"WHERE run_id = {quote(run.run_id)} AND id = {quote(request_id)}"
        try:
            rows = self._link.rows(
                f"SELECT toUInt32(now()), expires, state FROM {REQUESTS} "
                f"LEFT JOIN (SELECT id, state FROM {DELIVERIES} FINAL {wanted}) AS d USING (id) {wanted} LIMIT 1"
            )
        except EngineError:
            return PENDING
        if not rows or rows[0][2] == DELIVERED:
            return PENDING
        now, expires, state = rows[0]
        if state:
            return Delivery(text=clean(f"not delivered: {state}"), is_over=True)
        if now > float(expires):
            return Delivery(text=f"expired, {clean(run.node)} did not deliver it", is_over=True)
        return Delivery(text=f"waiting for {clean(run.node)}", is_over=False)

    def _engine_clock(self) -> float:
        """Return the time by the engine's clock, later than that of any request before."""
        ahead = self._runs.clock_ahead_s
        now = time.time() - (0.0 if abs(ahead) <= CLOCK_NOISE_S else ahead)
        with self._lock:
            self._last_asked = max(now, self._last_asked + 0.001)
            return self._last_asked
