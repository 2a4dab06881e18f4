"""A validation loss that jumps and comes back, where the training loss does not."""

from __future__ import annotations

import itertools
import math
import random

from tests.diagnostics.synthetic_runs import curve, evaluated, run_of
from tests.diagnostics.what_is_said import Between, Saying, Seeds, contract_of, put, times


def with_vals(vals, *, each=10, losses=None):
    losses = losses or curve(1, records=each * len(vals), noise=0.03)
    return evaluated(run_of(losses), vals, each=each)


def usual(seed=1, *, records=20, noise=0.02):
    return curve(seed, records=records, noise=noise, first=2.0, last=1.0)


def jumping(seed):
    dice = random.Random(seed)
    return [math.exp(dice.gauss(0.0, 0.5)) for _ in range(40)]


JUMPED = times(usual(), 10, 11, 4.0)
EARLY = usual(records=12, noise=0.0)
DIVERGED = [0.23, *curve(1, records=59, first=1.1, last=0.9, noise=0.15)]
SAID = {
    **{
        f"a jump at {at} for {length} in noise of {noise}": (
            Seeds(
                lambda seed, noise=noise, part=(at, at + length): with_vals(
                    times(usual(seed, records=24, noise=noise), *part, 3.0)
                )
            ),
            {
                "severity": "warning",
                "state": "resolved",
                "start_step": 10 * (at + 1),
                "noticed_step": 10 * (at + 1),
                "end_step": 10 * (at + length),
                "resolved_step": 10 * (at + length + 1),
                "count": length,
            },
        )
        for at, length, noise in itertools.product((5, 10, 18), (1, 3), (0.0, 0.02, 0.05))
    },
    "the last evaluation": (with_vals(times(usual(), 19, 20, 4.0)), {"state": "open"}),
    "a large jump of five evaluations": (with_vals([2.0, 1.8, 6.5, 1.4, 1.3]), {"start_step": 30}),
    "a level that stays is closed, and is no second one": (
        with_vals([*usual(), *[4.0] * 20]),
        {"state": "resolved", "message": Saying(without=["was back"])},
    ),
    "without any training loss": (
        [record for record in with_vals(JUMPED) if record["event"] == "eval"],
        {"peak": JUMPED[10]},
    ),
    "an early jump that comes back": (
        with_vals(times(EARLY, 1, 2, 5.0)),
        {"start_step": 20, "noticed_step": 30, "state": "resolved"},
    ),
    "a small jump clear of the noise counts once it is back": (
        with_vals(times([1.0 + 0.01 * (number % 2) for number in range(24)], 12, 13, 1.35)),
        {"start_step": 130, "noticed_step": 140, "ratio": Between(1.3, 1.5)},
    ),
}
SILENT = {
    "noise": Seeds(lambda seed: with_vals(usual(seed, records=40, noise=0.1)), 2, 20),
    "much noise": Seeds(lambda seed: with_vals(jumping(seed)), 2, 10),
    "NaN": with_vals(put(usual(), 10, [math.nan])),
    "zeros": with_vals([0.0] * 5 + usual()),
    "a jump of five evaluations": with_vals([2.0, 1.8, 3.2, 1.4, 1.3]),
    "a jump that the training loss makes too": with_vals(
        JUMPED, losses=times(curve(1, records=200, noise=0.03), 104, 112, 4.0)
    ),
    **{
        f"a run that diverged at the start, evaluated each {each}": with_vals(
            [0.28, *[0.95] * 11], each=each, losses=DIVERGED
        )
        for each in (5, 10)
    },
    "an early jump that stays": with_vals(times(EARLY, 1, None, 5.0)),
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("val_spike", SAID, SILENT)
