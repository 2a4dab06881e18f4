from __future__ import annotations

import math
import random

import pytest

from tests.diagnostics.synthetic_runs import SCHEDULES, changed, clean_run, detect
from tests.lengths import longer


@pytest.mark.parametrize("seed", range(longer(2, 5)))
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.2])
def test_a_loss_that_climbs_with_the_warm_up_is_reported(seed, noise):
    dice = random.Random(seed)
    records = clean_run(seed, records=2000)

    def climbs(step, loss):
        level = 2.0 - 0.2 * min(1.0, step / 500) + 3.0 * max(0.0, (step - 1000) / 1000)
        return min(level, 7.0) * math.exp(dice.gauss(0.0, noise))

    (finding,) = detect(changed(records, "train_loss", climbs), "lr_problem")

    assert 1000 <= finding.start_step <= 1600
    assert finding.noticed_step <= 2000
    assert finding.message.startswith("The loss climbs with the learning rate")


@pytest.mark.parametrize("noise", [0.02, 0.3, 0.8])
@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_a_hump_of_a_third_during_the_warm_up_is_not_reported(seed, noise):
    records = clean_run(seed, records=2000, noise=noise)
    records = changed(
        records, "train_loss", lambda step, loss: loss * (1 + 0.33 * math.exp(-(((step - 1500) / 500) ** 2)))
    )

    assert detect(records, "lr_problem") == []


@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_a_rate_that_becomes_0_in_the_middle_is_reported_after_twenty_records(seed):
    records = changed(clean_run(seed), "lr", lambda step, lr: 0.0 if step >= 2000 else lr)
    records = changed(records, "train_loss", lambda step, loss: 1.2 if step >= 2000 else loss)

    (finding,) = detect(records, "lr_problem")

    assert (finding.start_step, finding.noticed_step) == (2000, 2190)
    assert finding.message == "lr has been 0 since step 2,000 and the run continues: nothing is being learnt."


def test_a_rate_of_0_from_the_first_record_is_reported_if_nothing_is_learnt():
    records = changed(clean_run(1), "lr", lambda step, lr: 0.0)

    assert detect(records, "lr_problem") == []

    (finding,) = detect(changed(records, "train_loss", lambda step, loss: 2.0), "lr_problem")
    assert (finding.start_step, finding.noticed_step) == (10, 200)


@pytest.mark.parametrize("begins", [0, 2000])
@pytest.mark.parametrize("name", ["lr", "lr-AdamW/pg1", "train/lr_group0"])
def test_a_rate_of_almost_nothing_is_reported_as_one_of_0_is(begins, name):
    records = changed(
        clean_run(1, schedule="constant"), "lr", lambda step, lr: 1e-12 if step >= begins else lr
    )
    records = changed(records, "train_loss", lambda step, loss: 1.2 if step >= begins else loss)
    records = [{name if key == "lr" else key: value for key, value in each.items()} for each in records]

    (finding,) = detect(records, "lr_problem")

    assert (finding.start_step, finding.noticed_step) == (begins or 10, (begins or 10) + 190)
    assert finding.message.startswith(f"{name} has been at most 1e-12 since step")
    assert ("after 0.0003 before" in finding.message) == bool(begins)
    assert finding.remedies == ("stop",)


def test_one_of_several_rates_may_be_0_and_not_all_of_them():
    records = changed(clean_run(1, schedule="constant"), "train_loss", lambda step, loss: 1.2)
    frozen = [{**each, "lr": 0.0, "lr/unet": each["lr"]} if "lr" in each else each for each in records]

    assert detect(frozen, "lr_problem") == []
    assert detect(changed(frozen, "lr/unet", lambda step, lr: 1e-13), "lr_problem")


def test_a_schedule_that_ended_long_before_the_run_is_reported():
    records = changed(
        clean_run(1, schedule="linear", records=600), "lr", lambda step, lr: max(0.0, 3e-4 - step * 1e-7)
    )
    records = changed(records, "train_loss", lambda step, loss: 1.2)

    (finding,) = detect(records, "lr_problem")

    assert finding.start_step == 3000
    assert finding.noticed_step > 4000


def test_a_schedule_that_ends_with_the_run_is_not_reported():
    records = changed(clean_run(1, schedule="linear"), "lr", lambda step, lr: max(0.0, 3e-4 - step * 0.8e-7))

    assert detect(records, "lr_problem") == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_usual_schedule_is_as_it_should_be(schedule):
    assert detect(clean_run(1, schedule=schedule), "lr_problem") == []


def test_it_is_over_when_the_rate_is_back():
    records = changed(clean_run(1), "lr", lambda step, lr: 0.0 if 2000 <= step < 2500 else lr)
    records = changed(records, "train_loss", lambda step, loss: 1.2 if step >= 2000 else loss)

    (finding,) = detect(records, "lr_problem")

    assert (finding.end_step, finding.resolved_step) == (2490, 2500)
