from __future__ import annotations

import pytest

from toolkit.telemetry.diagnostics.incident import MOST_INCIDENTS, Incidents


def _open(incidents, step, **evidence):
    return incidents.open("spike", "loss", start_step=step, noticed_step=step, **evidence)


def _close(incidents, incident, step):
    incidents.close(incident, end_step=step, resolved_step=step + 1)


def test_one_that_comes_back_soon_is_the_same_one():
    incidents = Incidents()
    first = _open(incidents, 5)
    _close(incidents, first, 9)
    incidents.rows += 10

    again = incidents.open("spike", "loss", start_step=15, noticed_step=17, count=3)

    assert again is first
    assert again.is_open
    assert (again.repeats, again.count, again.start_step, again.end_step) == (1, 4, 5, 17)


def test_one_that_comes_back_later_is_another():
    incidents = Incidents()
    first = _open(incidents, 5)
    _close(incidents, first, 9)
    incidents.rows += 11

    again = _open(incidents, 20)

    assert again is not first
    assert list(incidents.by_id) == ["1-spike-loss-5", "1-spike-loss-20"]


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


def test_two_that_begin_at_the_same_step_have_ids_of_their_own():
    incidents = Incidents()

    assert len({_open(incidents, 5).id for _ in range(5)}) == 5


def test_beyond_twenty_the_last_one_counts_on():
    incidents = Incidents()
    for number in range(100):
        _close(incidents, _open(incidents, 100 * number), 100 * number + 1)
        incidents.rows += 1000

    assert len(incidents.by_id) == MOST_INCIDENTS
    last = list(incidents.by_id.values())[-1]
    assert last.repeats == 100 - MOST_INCIDENTS


def test_what_was_worst_stays_and_what_was_not_known_is_added():
    incidents = Incidents()
    first = _open(incidents, 5, level=1.0, peak=9.0, seconds=5.0)
    _close(incidents, first, 9)

    _open(incidents, 12, level=2.0, peak=4.0, seconds=8.0, now=4.0)

    assert first.evidence == {"level": 1.0, "peak": 9.0, "seconds": 8.0, "now": 4.0}
