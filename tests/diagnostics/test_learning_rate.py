from __future__ import annotations

from tests.diagnostics.synthetic_runs import SCHEDULES, changed, clean_run, detect
from tests.diagnostics.what_is_said import Between, Saying, Seeds, contract_of


def rated(lr, loss=lambda step, value: 1.2, seed=1, **about):
    """A run with another learning rate, and a loss that does not move: both functions of the step and the value."""
    return changed(changed(clean_run(seed, **about), "lr", lr), "train_loss", loss)


def from_2000(value):
    return lambda step, old: value if step >= 2000 else old


def learns(step, loss):
    return loss


def named(name, begins):
    records = rated(
        lambda step, lr: 1e-12 if step >= begins else lr,
        lambda step, loss: 1.2 if step >= begins else loss,
        schedule="constant",
    )
    return [{name if key == "lr" else key: value for key, value in each.items()} for each in records]


def frozen(rate):
    """Two rates, of which one is 0 and the other as `rate` says."""
    records = changed(clean_run(1, schedule="constant"), "train_loss", lambda step, loss: 1.2)
    return [{**each, "lr": 0.0, "lr/unet": rate or each["lr"]} if "lr" in each else each for each in records]


SAID = {
    "a rate that becomes 0 in the middle": (
        Seeds(lambda seed: rated(from_2000(0.0), from_2000(1.2), seed), 2),
        {
            "start_step": 2000,
            "noticed_step": 2190,
            "message": "lr has been 0 since step 2,000 and the run continues: nothing is being learnt.",
        },
    ),
    "0 from the first record, where nothing is learnt": (
        lambda: rated(lambda step, lr: 0.0, lambda step, loss: 2.0),
        {"start_step": 10, "noticed_step": 200},
    ),
    **{
        f"almost nothing as {name} from step {begins}": (
            lambda name=name, begins=begins: named(name, begins),
            {
                "start_step": begins or 10,
                "noticed_step": (begins or 10) + 190,
                "message": Saying(
                    f"{name} has been at most 1e-12 since step {begins or 10:,}"
                    + (", after 0.0003 before" if begins else "")
                ),
                "remedies": ("stop",),
            },
        )
        for begins in (0, 2000)
        for name in ("lr", "lr-AdamW/pg1", "train/lr_group0")
    },
    "a schedule that ended long before the run": (
        lambda: rated(lambda step, lr: max(0.0, 3e-4 - step * 1e-7), schedule="linear", records=600),
        {"start_step": 3000, "noticed_step": Between(4001, 6000)},
    ),
    "the rate is back": (
        lambda: rated(lambda step, lr: 0.0 if 2000 <= step < 2500 else lr, from_2000(1.2)),
        {"end_step": 2490, "resolved_step": 2500},
    ),
}
SILENT = {
    "0, where something is learnt": lambda: rated(lambda step, lr: 0.0, learns),
    "one of several rates": lambda: frozen(None),
    "a schedule that ends with the run": lambda: rated(
        lambda step, lr: max(0.0, 3e-4 - step * 0.8e-7), learns, schedule="linear"
    ),
    **{f"schedule {name}": lambda name=name: clean_run(1, schedule=name) for name in SCHEDULES},
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("lr_problem", SAID, SILENT)


def test_all_of_several_rates_may_not_be_almost_nothing():
    assert detect(frozen(1e-13), "lr_problem")
