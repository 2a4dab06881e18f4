"""A loss that is too good at once, and one that does not move."""

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


def still(rate, *, noise=0.004, records=400, **others):
    losses = curve(3, records=records, noise=noise, first=2.0, last=2.0)
    return run_of(losses, **{"lr": [rate] * records, "grad_norm": [0.8] * records, **others})


MOVES = [{**each, "global_step": each["global_step"] + 250, "train_loss": 1.0} for each in still(2e-9)[:60]]
test_a_rate_that_moves_nothing_is_named, test_other_flat_starts_are_not_its_fault = contract_of(
    "lr_too_small",
    {
        "a rate that moves nothing": (
            still(2e-9),
            {
                "severity": "warning",
                "start_step": 1,
                "noticed_step": 200,
                "message": Saying("2e-09"),
                "state": "open",
            },
        ),
        "a usual rate": (still(1e-4), {"severity": "info"}),
        "the loss moves": ([*still(2e-9)[:250], *MOVES], {"state": "resolved"}),
    },
    {
        "learns": run_of(curve(3, records=400, first=2.0, last=1.8), lr=[2e-9] * 400, grad_norm=[0.8] * 400),
        "noise": still(1e-4, noise=0.3),
        "short": still(2e-9)[:150],
        "no gradients": still(2e-9, grad_norm=[0.0] * 400),
        "no rate": still(0.0),
        "rl": still(2e-9, reward=[0.5] * 400),
        "warm-up": still(2e-9, lr=[1e-9 * 1.02**place for place in range(400)]),
    },
)
