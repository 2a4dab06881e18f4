from __future__ import annotations

import random

from tests.diagnostics.synthetic_runs import added, clean_run
from tests.diagnostics.what_is_said import Between, Seeds, contract_of


def waiting(share):
    """A run that waits for data for this share of each step, a function of the step."""

    def run(seed):
        dice = random.Random(seed)
        return added(
            clean_run(seed),
            "data_time_s",
            lambda step: 0.4 * share(step) * dice.lognormvariate(0.0, 0.2),
        )

    return run


def summed(share):
    """A run whose ledger has the wait of ten steps in each record."""
    run = added(clean_run(1), "steps_folded", lambda step: 9)
    return added(run, "ledger/data_wait", lambda step: 10 * 0.4 * share)


SAID = {
    "it waits from the start": (
        Seeds(waiting(lambda step: 0.6)),
        {
            "start_step": Between(0, 20),
            "noticed_step": 200,
            "severity": "warning",
            "share_pct": Between(50, 70),
        },
    ),
    "it waits in the middle": (
        Seeds(waiting(lambda step: 0.6 if 2000 <= step < 3000 else 0.05)),
        {
            "start_step": Between(1980, 2020),
            "noticed_step": Between(2200, 2300),
            "end_step": Between(2980, 3020),
            "resolved_step": Between(3000, 3300),
        },
    ),
    "a loop that counts waiting apart from the step": (
        lambda: waiting(lambda step: 1.2)(1),
        {"share_pct": Between(0, 65)},
    ),
    "the ledger's sum over several steps": (lambda: summed(0.6), {"share_pct": Between(50, 70)}),
}
SILENT = {
    "short waits and slow first batches of epochs": Seeds(
        waiting(lambda step: 0.95 if step % 200 < 40 else 0.15)
    ),
    "a ledger with little of it": lambda: summed(0.1),
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("data_starvation", SAID, SILENT)
