from __future__ import annotations

import random

from tests.diagnostics.synthetic_runs import curve, run_of
from tests.diagnostics.what_is_said import Between, Seeds, contract_of


def norms(share, *, seed=1, records=300, begins=100):
    dice = random.Random(seed)
    return [0.0 if place >= begins and dice.random() < share else 0.5 for place in range(records)]


def logged(**others):
    return run_of(curve(1), **others)


SAID = {
    "norms are often zero with a scale at its minimum": (
        Seeds(lambda seed: logged(grad_norm=norms(0.5, seed=seed), loss_scale=[1.0] * 300), 3),
        {"severity": "warning", "start_step": Between(101, 110), "state": "open"},
    ),
    "without a scale it is an info": (logged(grad_norm=norms(0.5)), {"severity": "info"}),
    "norms that are back resolve it": (
        logged(grad_norm=norms(0.5)[:200] + [0.5] * 100),
        {"state": "resolved"},
    ),
    "a growing share of zero gradients": (
        logged(zero_grad_share=[0.1] * 100 + [0.8] * 200),
        {"severity": "warning", "start_step": 101, "noticed_step": 140},
    ),
}
SILENT = {
    "rare zeros": logged(grad_norm=norms(0.05)),
    "nothing but zeros": logged(grad_norm=norms(1.0)),
    "reinforcement learning": logged(grad_norm=norms(0.5), reward=[0.5] * 300),
    "a short run": logged(grad_norm=norms(0.5, begins=0)[:30] + [None] * 270),
    "the share was always so": logged(zero_grad_share=[0.8] * 300),
    "only lately": logged(zero_grad_share=[0.1] * 270 + [0.8] * 30),
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("underflow", SAID, SILENT)
