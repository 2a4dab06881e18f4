from __future__ import annotations

import math
import random

import pytest

from tests.diagnostics.synthetic_runs import curve, detect, run_of
from tests.diagnostics.what_is_said import Between, Saying, Seeds, contract_of, put, times
from tests.lengths import longer


def usual(seed=1, *, records=300, noise=0.3, level=1.0):
    dice = random.Random(seed)
    return [level * math.exp(dice.gauss(0.0, noise)) for _ in range(records)]


def of_norms(norms, losses=None):
    return run_of(losses if losses is not None else curve(1, records=len(norms)), grad_norm=norms)


ONE = put(usual(noise=0.05), 150, [12.5])
SAID = {
    **{
        f"norms far above the usual of {level} with a noise of {noise}": (
            Seeds(
                lambda seed, noise=noise, level=level: of_norms(
                    put(usual(seed, noise=noise, level=level), 150, [30.0 * level] * 6)
                ),
                2,
                3,
            ),
            {
                "start_step": 151,
                "noticed_step": 151,
                "end_step": 156,
                "resolved_step": 161,
                "count": 6,
                "ratio": Between(24.0, 36.0),
            },
        )
        for level in (1e-4, 1.0, 1e5)
        for noise in (0.05, 0.3)
    },
    "two norms of twelve times the usual, at the second": (
        of_norms(put(ONE, 152, [12.5])),
        {"start_step": 151, "noticed_step": 153},
    ),
    "one such norm where the loss feels it": (
        of_norms(ONE, times(curve(1, noise=0.02), 151, 156, 2.0)),
        {"start_step": 151, "noticed_step": 152},
    ),
    "norms of a model that learns against another one": (
        run_of(curve(1), grad_norm=put(usual(), 150, [30.0] * 6), d_loss=[0.7] * 300),
        {"severity": "info", "start_step": 151},
    ),
    "norms that stay up": (
        of_norms([*usual(noise=0.1)[:200], *[40.0] * 100]),
        {"state": "open", "count": 100},
    ),
    "norms that follow a learning rate that was raised": (
        run_of(curve(1), grad_norm=put([1.0] * 300, 200, [30.0] * 8), lr=[1e-6] * 200 + [3e-4] * 100),
        {
            "severity": "warning",
            "title": "Rise with the learning rate",
            "message": Saying("The learning rate was raised from 1e-06 to 0.0003 at step 201."),
        },
    ),
}
SILENT = {
    "one norm of twelve times the usual was clipped and is gone": of_norms(ONE),
    "norms that vary by a factor of three": Seeds(lambda seed: of_norms(usual(seed, noise=0.5)), 2, 10),
    "a new session starts with larger norms": [
        *of_norms(usual()),
        {"event": "start", "session": 2},
        *({**record, "grad_norm": 50.0} for record in of_norms(usual())[:8]),
        *of_norms(usual())[8:],
    ],
    "clipped always": of_norms([1.0] * 300),
    "clipped now and then": of_norms([min(1.0, norm) for norm in usual(noise=1.0)]),
    "large at first": of_norms([500.0, 300.0, 200.0, 120.0, 90.0, 60.0, 40.0, 30.0, *usual()]),
    "growing step by step": of_norms([0.01 * 1.02**place for place in range(300)]),
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("exploding_grad", SAID, SILENT)


@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_outliers_below_the_norms_of_the_start_are_not_reported_where_norms_fall_by_decades(seed):
    dice = random.Random(seed)
    norms = [100.0 * math.exp(-8.0 * place / 300) for place in range(300)]
    for place in range(40, 300, 15):
        norms[place] *= dice.uniform(10.0, 11.0)

    assert max(norms[60:]) < 300.0
    assert [each for each in detect(of_norms(norms), "exploding_grad") if each.start_step > 80] == []
