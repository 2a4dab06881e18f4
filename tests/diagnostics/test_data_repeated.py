from __future__ import annotations

import random

import pytest

from tests.diagnostics.synthetic_runs import detect


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fraction", [True, False])
@pytest.mark.parametrize("per_epoch", [16, 40, 700])
def test_data_in_the_same_order_each_epoch_is_info(seed, fraction, per_epoch):
    records = epochs(seed, shuffled=False, fraction=fraction, per_epoch=per_epoch)

    (finding,) = detect(records, "data_repeated")

    assert finding.severity == "info"
    assert finding.start_step == 10 * per_epoch + 10
    assert finding.noticed_step == 30 * per_epoch + 10
    assert "same order" in finding.message
    assert finding.is_open


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fraction", [True, False])
@pytest.mark.parametrize("mean", [True, False])
def test_shuffled_data_is_silent(seed, fraction, mean):
    assert detect(epochs(seed, epochs=12, fraction=fraction, mean=mean), "data_repeated") == []


def test_a_loss_that_falls_only_between_epochs_is_info():
    (finding,) = detect(epochs(stairs=0.3, noise=0.03), "data_repeated")

    assert finding.severity == "info"
    assert "learnt by heart" in finding.message
    assert "30 %" in finding.message


def test_both_together_are_a_warning():
    findings = detect(epochs(stairs=0.3, noise=0.03, shuffled=False), "data_repeated")

    assert "warning" in {finding.severity for finding in findings}


@pytest.mark.parametrize(
    "records",
    [
        epochs(epochs=2, shuffled=False),
        epochs(per_epoch=10, shuffled=False),
        [{**record, "epoch": None} for record in epochs(shuffled=False)],
        [
            {name: value for name, value in record.items() if name != "epoch"}
            for record in epochs(shuffled=False)
        ],
        [{**record, "epoch": 3} for record in epochs(shuffled=False)],
    ],
    ids=["two epochs", "short epochs", "no number", "no epoch", "one epoch"],
)
def test_too_little_to_compare_is_silent(records):
    assert detect(records, "data_repeated") == []
