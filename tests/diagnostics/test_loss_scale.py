from __future__ import annotations

import math
import random

from tests.diagnostics.synthetic_runs import added, changed, clean_run
from tests.diagnostics.what_is_said import Between, Saying, Seeds, contract_of


def scaled(scale):
    return lambda: added(clean_run(1), "loss_scale", scale)


def up_and_down(seed):
    dice = random.Random(seed)
    return added(clean_run(1), "loss_scale", lambda step: 2.0 ** dice.choice((13, 14, 15)))


def often_infinite(seed):
    dice = random.Random(seed)
    return changed(
        clean_run(seed),
        "grad_norm",
        lambda step, norm: math.inf if 2000 <= step < 3000 and dice.random() < 0.3 else norm,
    )


SAID = {
    "a scale that halves again and again": (
        scaled(lambda step: 65536.0 / 2 ** min(5, max(0, (step - 2000) // 50 + 1))),
        {"start_step": 2000, "noticed_step": 2100, "state": "resolved", "severity": "warning"},
    ),
    "a scale at the bottom": (
        scaled(lambda step: 65536.0 / 2 ** min(16, max(0, (step - 2000) // 10 + 1))),
        {"severity": "critical", "state": "open", "message": Saying("cannot fall any further")},
    ),
    "many infinite norms are skipped steps": (
        Seeds(often_infinite),
        {"start_step": Between(2000, 2150), "noticed_step": Between(2000, 2300), "state": "resolved"},
    ),
}
SILENT = {
    "a scale of 1": scaled(lambda _: 1.0),
    "a scale of 128": scaled(lambda _: 128.0),
    "a scale of 65536": scaled(lambda _: 65536.0),
    "a scale that finds its range at the start": scaled(lambda step: 2.0 ** max(12, 32 - step // 10)),
    "a scale that goes up and down": Seeds(up_and_down, 2, 20),
    "one infinite norm in thirty records is a probe": lambda: changed(
        clean_run(1), "grad_norm", lambda step, norm: math.inf if step % 300 == 0 else norm
    ),
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("loss_scale", SAID, SILENT)
