from __future__ import annotations

import pytest

from tests.diagnostics.synthetic_runs import curve, detect, evaluated, run_of
from tests.made_runs import finding
from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE
from toolkit.telemetry.diagnostics.confidence import (
    CLEAR,
    DOUBTED,
    TAKEN_BACK,
    USUAL,
    confidence_of,
    strength_of,
)
from toolkit.telemetry.diagnostics.confidence_table import KINDS, RUNS, STRENGTHS
from toolkit.telemetry.diagnostics.examiner import examine
from toolkit.telemetry.diagnostics.policy import Policy

RISES = [2.0, 1.6, 1.3, 1.15, 1.1, 1.18, 1.3, 1.45, 1.6, 1.75, 1.9, 2.05]
HEALS = [*RISES, 1.6, 1.2, 0.9, 0.8, 0.75, 0.7]


def found(kind, severity="warning", *, is_open=True, count=1, **evidence):
    state = "open" if is_open else "resolved"
    return finding(kind, severity=severity, state=state, count=count, evidence=evidence)


def overfitting(vals):
    return evaluated(run_of(curve(1, records=20 * len(vals), noise=0.03, last=0.05)), vals, each=20)


def test_stronger_evidence_is_never_less_sure():
    shares = [share for share, *_ in STRENGTHS]

    assert len(STRENGTHS) == CLEAR + 1
    assert shares == sorted(shares)
    assert all(0.0 < share < 1.0 and share == round(share, 2) for share in shares)
    assert all(0 <= right <= of <= 10 * RUNS for _, right, of, _ in STRENGTHS)
    assert all(0 <= right <= of and of for right, of in KINDS.values())
    assert set(KINDS) <= set(CATALOGUE)


def test_a_loss_that_rose_further_is_never_less_sure():
    ratios = [0.0, 1.1, 1.9, 2.0, 4.9, 5.0, 100.0, 1e30, float("inf")]
    shares = [confidence_of(found("spike", ratio=ratio)) for ratio in ratios]

    assert shares == sorted(shares)
    assert shares == [confidence_of(found("spike", ratio=ratio)) for ratio in ratios]
    assert shares[0] == STRENGTHS[USUAL][0]
    assert shares[-1] == STRENGTHS[CLEAR][0]


@pytest.mark.parametrize(
    ("one", "strength"),
    [
        (found("spike", ratio=float("nan")), USUAL),
        (found("spike"), USUAL),
        (found("spike", "info", ratio=9.0), DOUBTED),
        (found("divergence", "critical", ratio=9.0, is_open=False), CLEAR),
        (found("val_spike", ratio=9.0, is_open=False, count=2), USUAL),
        (found("val_spike", ratio=9.0, is_open=False, count=at.VAL_SPIKE_LONGEST + 1), TAKEN_BACK),
        (found("overfit"), USUAL),
        (found("overfit", is_open=False), TAKEN_BACK),
        (found("plateau", noise=0.1), USUAL),
        (found("plateau", noise=0.1, is_open=False), DOUBTED),
        (found("plateau", "info", noise=0.1), DOUBTED),
        (found("plateau", "info", noise=0.1, is_open=False), TAKEN_BACK),
        (found("plateau", noise=0.0), CLEAR),
        (found("throughput_drop", is_open=False), USUAL),
    ],
)
def test_the_strength_of_the_evidence(one, strength):
    assert strength_of(one) == strength
    assert confidence_of(one) == STRENGTHS[strength][0]


@pytest.mark.parametrize("kind", ["stalled", "memory_growth", "straggler", "dead_lora", "of a later version"])
def test_a_kind_without_labelled_examples_has_no_confidence(kind):
    assert confidence_of(found(kind)) is None


def test_what_is_taken_back_is_no_more_than_info():
    (healed,) = detect(overfitting(HEALS), "overfit")

    assert healed.state == "resolved"
    assert healed.confidence == STRENGTHS[TAKEN_BACK][0] < at.CONFIDENCE_TO_WARN
    assert healed.severity == "info"


@pytest.mark.parametrize(("vals", "severity"), [(RISES, "critical"), (HEALS, "info")])
def test_a_configured_severity_is_for_what_is_not_taken_back(vals, severity):
    policy = Policy(severities={"overfit": "critical"})

    (judged,) = (one for one in examine(overfitting(vals), policy) if one.kind == "overfit")

    assert judged.severity == severity
