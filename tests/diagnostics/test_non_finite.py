from __future__ import annotations

import math

import pytest

from tests.diagnostics.synthetic_runs import curve, detect, detect_one_by_one, run_of
from toolkit.telemetry.runfolder.codec import decode, encode


def _run(*, losses=None, **others):
    losses = losses if losses is not None else curve(1, records=60)
    return run_of(losses, **others)


def _with(value, at, records=60, of=None):
    values = list(of) if of is not None else curve(1, records=records)
    for place in at:
        values[place] = value
    return values


def _norms(value, at):
    return _with(value, at, of=[1.0] * 60)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_run_of_nans_over_several_metrics_is_one_incident(value):
    at = range(30, 60)

    (finding,) = detect(
        _run(losses=_with(value, at), grad_norm=_norms(value, at), val_loss=_with(value, at)), "nan"
    )

    assert (finding.severity, finding.state) == ("critical", "open")
    assert (finding.start_step, finding.noticed_step, finding.count) == (31, 31, 30)
    assert finding.metric == "train_loss"
    assert finding.repeats == 0


def test_a_run_that_begins_with_nan_says_so():
    (finding,) = detect(_run(losses=[math.nan] * 60), "nan")

    assert finding.start_step == 1
    assert "from the first record on (60 records)" in finding.message


def test_it_is_over_when_three_numbers_have_come():
    (finding,) = detect(_run(losses=_with(math.nan, range(30, 35))), "nan")

    assert (finding.state, finding.end_step, finding.resolved_step, finding.count) == ("resolved", 35, 38, 5)


def test_nans_with_a_number_now_and_then_stay_one_incident():
    (finding,) = detect(_run(losses=_with(math.nan, [30, 31, 33, 35, 36, 38, 41])), "nan")

    assert (finding.start_step, finding.end_step, finding.count, finding.repeats) == (31, 42, 7, 0)


def test_one_infinite_gradient_norm_is_an_info():
    (finding,) = detect(_run(grad_norm=_norms(math.inf, [30])), "nan")

    assert (finding.severity, finding.state, finding.resolved_step) == ("info", "resolved", 32)
    assert "finds its range" in finding.message


def test_three_infinite_gradient_norms_in_a_row_are_critical():
    examiner, words = detect_one_by_one(_run(grad_norm=_norms(math.inf, [30, 31, 32]))[:33])
    (finding,) = [each for each in examiner.findings() if each.kind == "nan"]

    assert finding.severity == "critical"
    assert words[finding.id] == finding
    assert "finds its range" not in finding.message


def test_a_gradient_norm_that_is_nan_is_critical_at_once():
    (finding,) = detect(_run(grad_norm=_norms(math.nan, [30])), "nan")

    assert finding.severity == "critical"


def test_a_loss_of_exactly_0_next_to_a_nan_gradient_is_a_nan_that_the_trainer_hides():
    losses, norms = _with(0.0, range(30, 60)), _norms(math.nan, range(30, 60))

    (finding,) = detect(_run(losses=losses, grad_norm=norms), "nan")

    assert (finding.severity, finding.metric) == ("critical", "train_loss")
    assert "hides" in finding.message


def test_bare_values_and_those_named_under_non_finite_are_the_same():
    bare = _run(losses=_with(math.nan, range(30, 40)), grad_norm=_norms(math.inf, range(32, 40)))
    written = [decode(encode(record)) for record in bare]

    assert written[30]["train_loss"] is None
    assert detect(written, "nan") == detect(bare, "nan")
    assert len(detect(bare, "nan")) == 1


def _with_own_metric(bad, records=60):
    result = []
    for place, record in enumerate(_run()[:records]):
        own = {"accuracy": None, "non_finite": {"accuracy": "NaN"}} if place in bad else {"accuracy": 0.5}
        result.append({**record, **own})
    return result


def test_nan_in_a_metric_of_the_callers_own_is_a_warning():
    (finding,) = detect(_with_own_metric(range(30, 60)), "nan")

    assert (finding.severity, finding.metric, finding.state) == ("warning", "accuracy", "open")
    assert finding.count == 30
    assert finding.message == "accuracy is NaN or infinite from step 31 on (30 records)."


def test_a_metric_of_the_callers_own_that_is_back_is_resolved_and_stays_one_incident():
    (finding,) = detect(_with_own_metric([10, 11, 30, 50]), "nan")

    assert (finding.state, finding.count, finding.repeats) == ("resolved", 4, 2)
    assert (finding.start_step, finding.end_step, finding.resolved_step) == (11, 51, 54)


def test_an_epochs_mean_is_not_reported_again():
    records = _run(losses=_with(math.nan, range(30, 34)))
    mean = {"event": "epoch", "global_step": 60, "train_loss": None, "non_finite": {"train_loss": "NaN"}}

    assert len(detect([*records, mean], "nan")) == 1


def test_at_most_twenty_other_metrics_are_reported():
    names = [f"metric_{number}" for number in range(50)]
    records = [
        {**record, **dict.fromkeys(names), "non_finite": dict.fromkeys(names, "NaN")} for record in _run()[:5]
    ]

    assert len(detect(records, "nan")) == 20


@pytest.mark.parametrize("named", [None, 3, "NaN", ["train_loss"], {"accuracy": 7}])
def test_an_invalid_non_finite_map_is_ignored(named):
    assert detect([{**record, "accuracy": None, "non_finite": named} for record in _run()], "nan") == []


def test_a_new_session_ends_it_and_another_nan_is_another_incident():
    first = [{"event": "start", "session": 1}, *_run(losses=_with(math.nan, range(30, 60)))]
    second = [{"event": "start", "session": 2}, *_run(losses=_with(math.nan, range(30, 60)))]

    found = detect(first + second, "nan")

    assert [(each.session, each.state) for each in found] == [(1, "resolved"), (2, "open")]


def test_a_validation_loss_that_is_nan_once_is_over_with_the_next():
    vals = [None] * 60
    vals[9], vals[19], vals[29] = 1.0, math.nan, 0.9

    (finding,) = detect(_run(val_loss=vals), "nan")

    assert (finding.metric, finding.start_step, finding.resolved_step) == ("val_loss", 20, 30)
