"""Steps that mostly wait for their data."""

from __future__ import annotations

import math
from collections import deque

from toolkit.diagnostics import thresholds as at
from toolkit.diagnostics.detector import SingleIncidentDetector
from toolkit.diagnostics.incident import Incident, Incidents
from toolkit.diagnostics.metric_aliases import DATA_TIME, STEP_TIME, Row, name_of
from toolkit.diagnostics.robust import Window, start_of_streak

_KIND = "data_starvation"
_REPORT_AGAIN = 0.15


class DataStarvation(SingleIncidentDetector):
    """Reports steps that wait for their data for a large share of their time; always a warning."""

    signals = (DATA_TIME,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._reported = 0.0
        self._shares = Window(at.DATA_WINDOW)
        self._steps: deque[int] = deque(maxlen=at.DATA_WINDOW)

    def _forget(self) -> None:
        self._shares.clear()
        self._steps.clear()

    def take(self, row: Row) -> None:
        """Look at one step's time and the part of it that was waiting."""
        waited, took = row.values[DATA_TIME], row.values.get(STEP_TIME)
        if took is None or not (0.0 <= waited < math.inf and 0.0 < took < math.inf):
            return
        # Some loops include the waiting in the step's time and some do not.
        of_step = waited / took if waited <= took else waited / (waited + took)
        self._shares.push(of_step)
        self._steps.append(row.step)
        if len(self._shares) < at.DATA_FEWEST:
            return
        share = self._shares.median
        incident = self._incident
        if incident is None:
            if share > at.DATA_SHARE:
                self._open(row, share)
        elif share < at.DATA_SHARE_OVER:
            self._resolve(row.step)
        else:
            self._follow(incident, row.step, of_step, share)

    def _open(self, row: Row, share: float) -> None:
        shares = self._shares.values()
        first = start_of_streak([value > at.DATA_SHARE for value in shares])
        self._reported = share
        self._incident = self._incidents.open(
            _KIND,
            name_of(DATA_TIME, row.record),
            start_step=self._steps[first],
            noticed_step=row.step,
            count=len(shares) - first,
            share_pct=float(round(100 * share)),
        )

    def _follow(self, incident: Incident, step: int, of_step: float, share: float) -> None:
        if of_step > at.DATA_SHARE:
            incident.count += 1
            incident.end_step = step
        if share >= self._reported + _REPORT_AGAIN:
            self._reported = share
            incident.evidence["share_pct"] = float(round(100 * share))
            self._incidents.mark_changed(incident)
