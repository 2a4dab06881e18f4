from __future__ import annotations

import math
import random

import pytest

from tests.diagnostics.synthetic_runs import added, changed, clean_run, detect
from tests.lengths import longer


def test_a_scale_that_halves_again_and_again_is_reported():
    records = added(
        clean_run(1), "loss_scale", lambda step: 65536.0 / 2 ** min(5, max(0, (step - 2000) // 50 + 1))
    )

    (finding,) = detect(records, "loss_scale")

    assert (finding.start_step, finding.noticed_step) == (2000, 2100)
    assert finding.state == "resolved"
    assert finding.severity == "warning"


def test_a_scale_at_the_bottom_is_critical():
    records = added(
        clean_run(1), "loss_scale", lambda step: 65536.0 / 2 ** min(16, max(0, (step - 2000) // 10 + 1))
    )

    (finding,) = detect(records, "loss_scale")

    assert finding.severity == "critical"
    assert finding.is_open
    assert "cannot fall any further" in finding.message


@pytest.mark.parametrize(
    "scale",
    [lambda _: 1.0, lambda _: 128.0, lambda _: 65536.0, lambda step: 2.0 ** max(12, 32 - step // 10)],
    ids=["1", "128", "65536", "one that finds its range at the start"],
)
def test_a_scale_that_stays_is_not_reported(scale):
    assert detect(added(clean_run(1), "loss_scale", scale), "loss_scale") == []


@pytest.mark.parametrize("seed", range(longer(2, 20)))
def test_a_scale_that_goes_up_and_down_is_not_reported(seed):
    dice = random.Random(seed)

    assert (
        detect(added(clean_run(1), "loss_scale", lambda step: 2.0 ** dice.choice((13, 14, 15))), "loss_scale")
        == []
    )


@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_many_infinite_norms_are_skipped_steps(seed):
    dice = random.Random(seed)
    records = changed(
        clean_run(seed),
        "grad_norm",
        lambda step, norm: math.inf if 2000 <= step < 3000 and dice.random() < 0.3 else norm,
    )

    findings = detect(records, "loss_scale")

    assert 2000 <= findings[0].start_step <= 2150
    assert findings[0].noticed_step <= 2300
    assert findings[-1].state == "resolved"
    assert len(findings) == 1


def test_one_infinite_norm_in_thirty_records_is_a_probe():
    records = changed(clean_run(1), "grad_norm", lambda step, norm: math.inf if step % 300 == 0 else norm)

    assert detect(records, "loss_scale") == []
