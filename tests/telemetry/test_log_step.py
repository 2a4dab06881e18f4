"""Each value of a step keeps its name, whether the step is written or folded."""

from __future__ import annotations

import pytest

from tests.telemetry.logged import make_logger, records_of
from toolkit.telemetry.logger.records.folded_metrics import COLUMNS, WELL_KNOWN


@pytest.mark.parametrize("others", [{}, {"mine": 7.5}])
@pytest.mark.parametrize("missing", [None, *WELL_KNOWN])
def test_each_field_keeps_its_name(tmp_path, missing, others):
    written = {name: 0.5 + at for at, name in enumerate(WELL_KNOWN) if name != missing} | others
    folded = {name: value + 0.25 for name, value in written.items()}
    with make_logger(tmp_path, log_every=10) as log:
        log.log_step(0, **written)
        log.log_step(1, **folded)
        log.log_step(10)
    first, last = (record for record in records_of(log) if record["event"] == "step")

    assert {name: first.get(name) for name in written} == written
    assert missing in (None, "sec_per_step", "samples_per_sec") or missing not in first
    kept = [name for name in (*COLUMNS, *others) if name in folded]
    assert {name: last.get(name) for name in kept} == {name: folded[name] for name in kept}
