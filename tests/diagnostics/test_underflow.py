from __future__ import annotations

from tests.diagnostics.synthetic_runs import curve, run_of
from tests.diagnostics.what_is_said import contract_of


def logged(**others):
    return run_of(curve(1), **others)


test_one_finding_has_these_facts, test_nothing_is_found = contract_of(
    "underflow",
    {
        "a growing share of zero gradients": (
            logged(zero_grad_share=[0.1] * 100 + [0.8] * 200),
            {"severity": "warning", "start_step": 101, "noticed_step": 140},
        ),
        "the share falls again": (
            logged(zero_grad_share=[0.1] * 100 + [0.8] * 100 + [0.1] * 100),
            {"state": "resolved"},
        ),
    },
    {
        "the share was always so": logged(zero_grad_share=[0.8] * 300),
        "only lately": logged(zero_grad_share=[0.1] * 270 + [0.8] * 30),
    },
)
