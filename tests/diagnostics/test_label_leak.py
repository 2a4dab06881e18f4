"""A loss that is too good at once."""

from __future__ import annotations

from tests.diagnostics.synthetic_runs import curve, run_of
from tests.diagnostics.what_is_said import Saying, contract_of

START = {"event": "start", "session": 1, "max_steps": 100_000}


def leaking(seed=1, *, after=10, to=0.002):
    return [
        loss if place < after else loss * to for place, loss in enumerate(curve(seed, first=2.0, last=2.0))
    ]


test_a_leak_is_named, test_other_starts_are_not_suspicious = contract_of(
    "label_leak",
    {
        "early in the plan": (
            [START, *run_of(leaking())],
            {"severity": "warning", "start_step": 11, "noticed_step": 60},
        ),
        "without a plan, because an easy task looks the same": (run_of(leaking()), {"severity": "info"}),
        "a loss of exactly 0 from the start counts nothing": (
            run_of([0.0] * 40, grad_norm=[0.0] * 40),
            {
                "severity": "warning",
                "noticed_step": 20,
                "message": Saying("exactly 0 from the first record"),
            },
        ),
    },
    {
        name: [START, *records]
        for name, records in {
            "healthy": run_of(curve(1)),
            "later": run_of(leaking(after=50)),
            "a tenth": run_of(leaking(to=0.1)),
            "short": run_of(leaking()[:50]),
            "rl": run_of(leaking(), reward=[0.5] * 300),
            "buffer": run_of([0.0] * 15 + curve(1)),
            "gradients": run_of([0.0] * 40, grad_norm=[0.3] * 40),
            "negative": run_of([-loss for loss in leaking()]),
        }.items()
    },
)
