"""A loss that no longer improves, or repeats itself; and those that learn slowly, are solved or end their schedule."""

from __future__ import annotations

import math
import random

from tests.diagnostics.synthetic_runs import curve, detect, run_of
from tests.diagnostics.what_is_said import Between, Saying, Seeds, contract_of
from tests.lengths import longer


def flat_after(first, *, records=1500, noise=0.05, seed=0):
    dice = random.Random(seed)
    return [
        (1.0 + 2.0 * math.exp(-8.0 * place / first)) * math.exp(dice.gauss(0.0, noise))
        for place in range(records)
    ]


def like_grokking():
    dice = random.Random(1)
    falls = [math.exp(-place / 150.0 + dice.gauss(0.0, 0.02)) for place in range(800)]
    return run_of(flat_after(50, records=800, noise=0.02) + falls)


def gains(seed):
    """A slow steady gain."""
    dice = random.Random(seed)
    return run_of(
        [2.0 * (1.0 - 0.1 * place / 1000) * math.exp(dice.gauss(0.0, 0.05)) for place in range(1000)]
    )


SHORT = [1.001 * loss for loss in flat_after(20, records=1100, noise=0.02, seed=1)]
NEVER_MOVED = curve(1, records=160, noise=0.002, first=1.0, last=1.0)
AN_INFO, A_WARNING = {"severity": "info"}, {"severity": "warning"}
SAID = {
    **{
        f"flat for most of a long run in noise of {noise}": (
            Seeds(lambda seed, noise=noise: run_of(flat_after(100, noise=noise, seed=seed)), 2, 4),
            {
                "severity": "warning",
                "state": "open",
                "noticed_step": Between(100, 1499),
                "level": Between(0.95, 1.05),
            },
        )
        for noise in (0.01, 0.05)
    },
    "it repeats itself after a dozen records": (
        run_of([*curve(1, records=10), *[2.303] * 60]),
        {
            "severity": "warning",
            "start_step": 11,
            "noticed_step": 21,
            "count": 60,
            "message": Saying("constant at 2.303"),
        },
    ),
    "a loss against an opponent repeats itself": (run_of([2.303] * 60, d_loss=[0.7] * 60), AN_INFO),
    "a loss that repeated itself moves again": (
        run_of([*[2.303] * 60, *curve(1, records=100, first=2.3)]),
        {"state": "resolved", "end_step": 60, "resolved_step": 61},
    ),
    "it ends like grokking": (like_grokking, {"state": "resolved", "resolved_step": Between(801, 1399)}),
    "the rate stays": (run_of(flat_after(600), lr=[3e-4] * 1500), {"state": "open"}),
    "the first quarter of the planned steps": (
        [{"event": "start", "session": 1, "max_steps": 100_000}, *run_of(flat_after(100))],
        AN_INFO,
    ),
    "a short run that never moved": (run_of(NEVER_MOVED), A_WARNING),
    "and whose loss is not meant to fall": (run_of(NEVER_MOVED, reward=[1.0] * 160), AN_INFO),
}
SILENT = {
    **{
        f"a loss of {records} records that falls in noise of {noise}": Seeds(
            lambda seed, about=(records, noise): run_of(curve(seed, records=about[0], noise=about[1])), 2, 3
        )
        for noise in (0.01, 0.05, 0.1)
        for records in (80, 300, 1500)
    },
    **{
        f"solved: {value}": run_of([3.0 * 0.8**place for place in range(60)] + [value] * 900)
        for value in (0.0, 1e-7)
    },
    "a learning rate at the end of its schedule": run_of(
        flat_after(600), lr=[3e-4 if place < 400 else 1e-6 for place in range(1500)]
    ),
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("plateau", SAID, SILENT)


def test_a_plateau_of_a_short_run_is_an_info_and_becomes_a_warning_later():
    (early,), (late,) = (detect(run_of(losses), "plateau") for losses in (SHORT[:300], SHORT))

    assert (early.severity, late.severity, late.id) == ("info", "warning", early.id)


def test_a_slow_steady_gain_is_no_warning_during_or_after_the_run():
    for seed in range(2):
        records = gains(seed)
        for length in range(100, 1001, 100):
            assert {found.severity for found in detect(records[:length], "plateau")} <= {"info"}
        assert not [found for found in detect(records, "plateau") if found.is_open]


def test_how_often_a_slow_gain_without_a_plan_is_misjudged_grows_no_further():
    warned = 0
    for seed in range(longer(8, 20)):
        dice = random.Random(seed)
        tau, noise = dice.choice((3000, 8000, 20_000)), dice.choice((0.03, 0.1, 0.3))
        losses = [
            (2.0 * math.exp(-place / tau) + 0.5) * math.exp(dice.gauss(0.0, noise)) for place in range(2000)
        ]
        warned += any(finding.severity == "warning" for finding in detect(run_of(losses), "plateau"))

    # A gain of a few percent in noise of ten is not seen in time: this is a count of 20, as measured.
    assert warned <= 9
