from __future__ import annotations

import pytest

from toolkit.telemetry.diagnostics.incident import Incidents


def _open(incidents, step, **evidence):
    return incidents.open("spike", "loss", start_step=step, noticed_step=step, **evidence)


def _close(incidents, incident, step):
    incidents.close(incident, end_step=step, resolved_step=step + 1)


def test_what_is_soon_grows_with_the_run():
    incidents = Incidents()
    incidents.rows = 10_000
    first = _open(incidents, 5)
    _close(incidents, first, 9)
    incidents.rows += 150

    assert _open(incidents, 200) is first


@pytest.mark.parametrize(
    "other", [{"kind": "nan"}, {"metric": "val_loss"}, {"which": 3}], ids=["kind", "metric", "which"]
)
def test_one_of_another_kind_metric_or_rank_is_not_its_return(other):
    incidents = Incidents()
    first = _open(incidents, 5)
    _close(incidents, first, 9)

    again = incidents.open(**{"kind": "spike", "metric": "loss", "start_step": 5, "noticed_step": 5, **other})

    assert again is not first
    assert len(incidents.by_id) == 2


def test_a_peak_keeps_its_step_and_its_ratio_to_the_first_level_when_the_incident_comes_back():
    incidents = Incidents()
    first = _open(incidents, 5, level=2.0, peak=9.0, peak_step=7, ratio=4.5)
    _close(incidents, first, 9)

    _open(incidents, 12, level=1.0, peak=8.0, peak_step=13, ratio=8.0)

    assert first.evidence == {"level": 2.0, "peak": 9.0, "peak_step": 7, "ratio": 4.5}
