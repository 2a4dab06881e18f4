"""A formula over records that come one by one, as in a live run."""

from __future__ import annotations

import math

from toolkit.telemetry.formulas.evaluation import Evaluation


class OneByOne(Evaluation):
    """Takes one record at a time."""

    def take(self, values, places=None):
        rows, found = super().take(
            {name: ([0], [value]) for name, value in values.items()},
            lambda name, rows: [(places or {}).get(name, math.nan)] * len(rows),
        )
        return found[0] if rows else None
