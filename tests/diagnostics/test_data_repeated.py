from __future__ import annotations

import random
from functools import partial

from tests.diagnostics.synthetic_runs import detect
from tests.diagnostics.what_is_said import Saying, Seeds, contract_of


def epochs(
    seed=0, *, epochs=6, per_epoch=40, shuffled=True, stairs=0.0, noise=0.1, fraction=True, mean=False
):
    """Return a run over several epochs, whose batches differ, in the same order each time unless it is `shuffled`."""
    dice = random.Random(seed)
    batches = [dice.gauss(0.0, noise) for _ in range(per_epoch)]
    records, level, step = [], 2.0, 0
    for epoch in range(epochs):
        if shuffled:
            dice.shuffle(batches)
        losses = [level + each + dice.gauss(0.0, 0.2 * noise) for each in batches]
        if mean:
            losses = [
                sum(losses[: place + 1]) / (place + 1) + 1.0 / (place + 1) for place in range(per_epoch)
            ]
        for place, loss in enumerate(losses):
            step += 10
            at = round(epoch + (place + 1) / per_epoch, 4) if fraction else epoch
            records.append({"event": "step", "global_step": step, "loss": loss, "epoch": at})
        level *= 1.0 - (stairs or 0.02)
    return records


SHUFFLED = [(fraction, mean) for fraction in (True, False) for mean in (True, False)]
SAME_ORDER = [(fraction, length) for fraction in (True, False) for length in (16, 40, 700)]
SAID = {
    **{
        f"the same order in epochs of {length}, {'by parts' if fraction else 'by whole numbers'}": (
            Seeds(partial(epochs, shuffled=False, fraction=fraction, per_epoch=length), 3),
            {
                "severity": "info",
                "start_step": 10 * length + 10,
                "noticed_step": 30 * length + 10,
                "message": Saying("same order"),
                "state": "open",
            },
        )
        for fraction, length in SAME_ORDER
    },
    "a loss that falls only between epochs": (
        epochs(stairs=0.3, noise=0.03),
        {"severity": "info", "message": Saying("learnt by heart")},
    ),
}
SILENT = {
    **{
        f"shuffled data, {fraction=}, {mean=}": Seeds(
            partial(epochs, epochs=12, fraction=fraction, mean=mean), 3
        )
        for fraction, mean in SHUFFLED
    },
    "two epochs": epochs(epochs=2, shuffled=False),
    "short epochs": epochs(per_epoch=10, shuffled=False),
    "no number of the epoch": [{**record, "epoch": None} for record in epochs(shuffled=False)],
    "no epoch": [
        {name: value for name, value in record.items() if name != "epoch"}
        for record in epochs(shuffled=False)
    ],
    "one epoch": [{**record, "epoch": 3} for record in epochs(shuffled=False)],
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("data_repeated", SAID, SILENT)


def test_both_together_are_a_warning():
    findings = detect(epochs(stairs=0.3, noise=0.03, shuffled=False), "data_repeated")

    assert "warning" in {finding.severity for finding in findings}
