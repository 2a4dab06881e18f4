"""Records of runs in which something goes wrong, and the finding records that a live run would have reported."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from typing import Any

from tests.made_runs import BEGAN, step_record
from toolkit.telemetry.diagnostics.examiner import Examiner


def steps(trouble: str = "", count: int = 400, **more: Any) -> list[dict[str, Any]]:
    """Return `count` step records of a loss that falls, with trouble from the middle on."""
    rng = random.Random(7)
    records = [{"event": "start", "seq": 0, "session": 1, "time": BEGAN, "elapsed": 0.0, "rank": 0}]
    for step in range(count):
        loss = 2.0 / (1.0 + step / 60.0) + 0.4 + rng.gauss(0.0, 0.02)
        since = step - count // 2
        if trouble == "nan" and since >= 0:
            loss = math.nan
        elif trouble == "spike" and 0 <= since < 3:
            loss *= 9.0
        elif trouble == "divergence" and since >= 0:
            loss += 0.1 * since
        records.append(step_record(step, train_loss=loss, lr=1e-4, **more))
    return records


def with_findings(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `records` with the `finding` records that the run would have had among them."""
    examiner, found = Examiner(), []
    for record in records:
        found.append(dict(record))
        for finding in examiner.take([record]):
            found.append(
                {
                    "event": "finding",
                    "session": 1,
                    "time": record["time"],
                    "global_step": finding.noticed_step,
                    **finding.to_fields(),
                }
            )
    return found
