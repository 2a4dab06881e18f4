from __future__ import annotations

from tests.diagnostics.synthetic_runs import curve, run_of
from tests.diagnostics.what_is_said import Saying, contract_of


def adapter(norms, lr=1e-4):
    return run_of(curve(1)[: len(norms)], lr=[lr] * len(norms), lora_B_grad_norm=norms)


SAID = {
    "an adapter without gradients from the start": (
        adapter([0.0] * 100),
        {
            "severity": "warning",
            "start_step": 1,
            "noticed_step": 20,
            "count": 100,
            "metric": "lora_B_grad_norm",
        },
    ),
    "an adapter that stops learning": (
        adapter([0.1] * 50 + [0.0] * 50),
        {"start_step": 51, "message": Saying("was not before")},
    ),
    "the first gradient resolves it": (
        adapter([0.0] * 50 + [0.1] * 5),
        {"state": "resolved", "resolved_step": 51},
    ),
}
SILENT = {
    "a healthy adapter": adapter([0.1] * 100),
    "no gradient now and then": adapter([0.0, 0.1] * 50),
    "a short run": adapter([0.0] * 19),
    "no learning rate": adapter([0.0] * 100, lr=0.0),
    "no adapter": run_of(curve(1)),
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("dead_lora", SAID, SILENT)
