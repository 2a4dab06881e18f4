"""What is said about a resume: the same training, another one and why, or that it cannot be said."""

import itertools
import math
import random

import pytest

from evaluations.resume import contradictions
from toolkit.telemetry.diagnostics.resume.judge import (
    CHECKPOINT,
    DIFFERENT,
    FROM_START,
    OPTIMIZER,
    OTHER,
    RNG,
    SAME,
    SCALER,
    SCHEDULE,
    SETTINGS,
    SIZE,
    SKIPPED,
    STATE_PART,
    UNKNOWN,
    UNLISTED,
    Batch,
    Side,
    judge,
)

RESUMED = 30
LAST = 45


def _loss(step):
    return 3.0 * math.exp(-step / 60) + random.Random(step).gauss(0.0, 0.05)


def _rate(step):
    return 1e-3 * min(1.0, step / 10) * (1 - step / 200)


def _batches(steps, first=0, samples=8):
    return [Batch(step, 1_000 + first + at, samples) for at, step in enumerate(steps)]


def _state(at, **changed):
    fields = {"weights_norm": 2.5, "optimizer_step": RESUMED, "moment1_norm": 0.3, "scheduler_step": RESUMED}
    more = {"scaler_scale": 1024.0, "rng_torch": "ab", "epoch": 1, "data_position": 7}
    return {"event": "state", "at": at, "global_step": RESUMED, **fields, **more, **changed}


def _old(last=LAST, **more):
    steps = range(1, last + 1)
    return Side(loss={step: _loss(step) for step in steps}, lr={step: _rate(step) for step in steps}, **more)


def _new(change=lambda step, loss: loss, rate=_rate, **more):
    steps = range(RESUMED + 1, RESUMED + 21)
    return Side(
        loss={step: change(step, _loss(step)) for step in steps},
        lr={step: rate(step) for step in steps},
        **more,
    )


def test_equal_losses_are_the_same_training_to_the_last_digit():
    said = judge(_old(), _new())

    assert (said.answer, said.how, said.step, said.doubles) == (SAME, "to the last digit", RESUMED, 15)


def test_differences_of_kernels_are_within_the_noise():
    said = judge(_old(), _new(lambda step, loss: loss * (1 + 1e-6 * (step % 3))))

    assert (said.answer, said.how) == (SAME, "within the noise")


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"weights_norm": 2.4}, CHECKPOINT),
        ({"optimizer_step": 0, "moment1_norm": 0.0}, OPTIMIZER),
        ({"scheduler_step": 0}, SCHEDULE),
        ({"scaler_scale": 65536.0}, SCALER),
        ({"data_position": 0}, FROM_START),
        ({"data_position": 14}, SKIPPED),
    ],
)
def test_what_was_loaded_otherwise_is_the_cause_even_if_no_step_exists_twice(changed, cause):
    said = judge(_old(RESUMED, states=[_state("save")]), _new(states=[_state("load", **changed)]))

    assert (said.answer, said.cause) == (DIFFERENT, cause)


def test_the_state_that_was_saved_is_the_same_training_without_any_step_twice():
    said = judge(_old(RESUMED, states=[_state("save")]), _new(states=[_state("load")]))

    assert said.answer == SAME


def test_other_random_numbers_count_only_where_the_losses_show_them():
    old, state = _old(states=[_state("save")]), [_state("load", rng_torch="cd")]

    assert judge(old, _new(states=state)).answer == SAME
    other = judge(old, _new(lambda step, loss: loss + 0.01 * (-1) ** step, states=state))
    assert (other.answer, other.cause) == (DIFFERENT, RNG)


@pytest.mark.parametrize(("first", "samples", "cause"), [(0, 8, FROM_START), (35, 8, SKIPPED), (30, 4, SIZE)])
def test_batches_show_where_the_data_went_on(first, samples, cause):
    old = _old(batches=_batches(range(1, LAST + 1)))
    new = _new(
        lambda step, loss: loss + random.Random(-step).gauss(0, 0.1),
        batches=_batches(range(RESUMED + 1, 50), first, samples),
    )

    assert judge(old, new).cause == cause


def test_a_schedule_that_starts_again_is_seen_with_and_without_steps_twice():
    def again(step):
        return _rate(step - RESUMED)

    assert judge(_old(), _new(lambda _, loss: loss + 0.002, again)).cause == SCHEDULE
    assert judge(_old(RESUMED), _new(rate=again)).cause == SCHEDULE


def test_a_schedule_that_had_ended_is_not_said_to_go_below_zero():
    old, new = _old(RESUMED), _new(rate=lambda _: 1e-5)
    old.lr.update({step: 1e-4 * (RESUMED - step) for step in old.lr})

    (rate,) = (row for row in judge(old, new).evidence if row.what.startswith("learning rate"))
    assert (rate.before, rate.after) == ("0.0", "1e-05")


def test_what_the_settings_ask_for_is_no_fault():
    def again(step):
        return _rate(step) * min(1.0, (step - RESUMED) / 5)

    def slightly(step, loss):
        return loss + 0.01 * (-1) ** step

    settings = {"learning_rate": 1e-3, "eval_every": 10, "seed": 1}
    for change, rate in (
        ({"rewarmup_steps": 5}, again),
        ({"seed": 2}, _rate),
        ({"eval_every": 3}, _rate),
    ):
        said = judge(_old(settings=settings), _new(slightly, rate, settings=settings | change))
        assert said.answer == SAME, change

    said = judge(_old(settings=settings), _new(slightly, settings=settings | {"weight_decay": 0.5}))
    assert (said.answer, said.cause) == (DIFFERENT, OTHER)


def test_without_settings_what_may_have_been_asked_for_is_no_fault_yet():
    def again(step):
        return _rate(step) * min(1.0, (step - RESUMED) / 5)

    def slightly(step, loss):
        return loss + 0.01 * (-1) ** step

    for new in (_new(slightly), _new(lambda step, loss: loss + 0.2, again)):
        said = judge(_old(), new)
        assert said.answer == UNKNOWN
        assert "the settings of both sessions" in said.needed[-1]
    assert "Differs, and may have acted: learning rate of step 31." in said.sentence


def test_another_seed_that_the_settings_ask_for_may_change_the_order_of_the_data():
    settings = {"seed": 1}
    old = _old(settings=settings, batches=_batches(range(1, LAST + 1)))
    new = {"settings": {"seed": 2}, "batches": _batches(range(RESUMED + 1, 50), first=500)}

    def of_other_data(step, _=None):
        return 3.0 * math.exp(-step / 60) + random.Random(step + 1000).gauss(0.0, 0.05)

    assert judge(old, _new(of_other_data, **new)).answer == UNKNOWN
    assert judge(old, _new(lambda step, _: of_other_data(step) + 2.0, **new)).answer == DIFFERENT


def test_from_losses_alone_the_way_they_depart_tells_causes_apart():
    wobble = random.Random(1)
    lost = judge(
        _old(), _new(lambda step, loss: loss if step == RESUMED + 1 else loss + wobble.gauss(0, 0.03))
    )
    earlier = judge(_old(), _new(lambda step, loss: loss + math.exp((RESUMED - step) / 4)))

    assert (lost.answer, lost.cause) == (DIFFERENT, OPTIMIZER)
    assert (earlier.answer, earlier.cause) == (DIFFERENT, CHECKPOINT)


def test_without_evidence_it_cannot_be_said_and_what_is_needed_is_named():
    said = judge(_old(RESUMED), _new())

    assert said.answer == UNKNOWN
    assert len(said.needed) == 3


def test_one_loss_that_differs_is_not_enough():
    new = Side(loss={RESUMED + 1: 9.0}, lr={RESUMED + 1: _rate(RESUMED + 1)})
    assert judge(_old(), new).answer == UNKNOWN


def test_weights_that_were_rounded_when_they_were_saved_are_not_another_checkpoint():
    new = _new(lambda step, loss: loss * 1.2, states=[_state("load", weights_norm=2.50002, optimizer_step=0)])
    said = judge(_old(states=[_state("save")]), new)
    assert (said.answer, said.cause) == (DIFFERENT, OPTIMIZER)
    assert CHECKPOINT not in said.others


def test_nothing_and_not_a_number_are_no_reason_to_fail():
    nan = dict.fromkeys(range(20, 40), math.nan)

    for old, new in ((Side(), Side()), (_old(), Side()), (Side(), _new()), (_old(), Side(loss=nan))):
        assert judge(old, new).answer == UNKNOWN


def _all_recorded(change=lambda step, loss: loss, first=RESUMED, settings=(), code=(), **loaded):
    given = {"lr": 1e-3, "batch_size": 8}
    old = _old(batches=_batches(range(1, LAST + 1)), states=[_state("save", ema_norm=7.457)], settings=given)
    new = _new(
        change,
        batches=_batches(range(RESUMED + 1, 50), first),
        states=[_state("load", **{"ema_norm": 7.457, **loaded})],
        settings=given | dict(settings),
        changed_code=list(code),
    )
    return judge(old, new, 2)


def test_other_losses_of_all_that_is_recorded_as_equal_are_another_training():
    said = _all_recorded(lambda step, loss: loss + 8.0)

    assert (said.answer, said.cause) == (DIFFERENT, UNLISTED)
    assert "the same weights, batches, optimizer's state, settings, code give another loss" in said.sentence
    assert "Not recorded: labels" in said.sentence
    assert any("labels" in needed for needed in said.needed)


def test_a_first_loss_of_other_precision_overrules_the_state_that_was_loaded():
    for by in (3e-4, 1e-3):
        said = _all_recorded(lambda step, loss, by=by: loss * (1 + by * (-1) ** step))
        assert (said.answer, said.cause) == (DIFFERENT, UNLISTED), by

    states = [_state(at, precision=kind) for at, kind in (("save", "32-true"), ("load", "bf16-mixed"))]
    said = judge(_old(states=states[:1]), _new(lambda step, loss: loss * 1.001, states=states[1:]))
    assert (said.answer, said.cause, said.area) == (DIFFERENT, OTHER, SETTINGS)
    assert "(precision: 32-true before, bf16-mixed after)" in said.sentence

    bare = judge(_old(), _new(lambda step, loss: loss * (1 + 1e-4 * (-1) ** step)))
    assert bare.answer == UNKNOWN
    assert len(bare.needed) == 3
    assert "more than rounding in 32 bits" in bare.needed[-1]


@pytest.mark.parametrize("change", [lambda step, loss: loss, lambda step, loss: loss * (1 + 1e-6)])
def test_a_part_of_the_state_that_differs_is_named_although_the_losses_agree(change):
    said = _all_recorded(change, ema_norm=7.507)

    assert (said.answer, said.cause) == (DIFFERENT, STATE_PART)
    assert "(ema_norm: 7.457 before, 7.507 after)" in said.sentence


def test_what_equal_losses_overrule_is_named_and_makes_the_answer_less_sure():
    for field, what in (
        ("rng_torch", "torch's random state"),
        ("data_position", "epoch and batch of the data"),
    ):
        said = _all_recorded(**{field: 12})
        assert (said.answer, said.how) == (SAME, "to the last digit")
        assert f"Differs, with no effect seen: {what}." in said.sentence
        assert said.probability <= 0.9


def test_no_answer_contradicts_its_own_rows():
    wobble = random.Random(2)
    losses = {
        "equal": lambda step, loss: loss,
        "rounding": lambda step, loss: loss * (1 + 1e-6 * (step % 3)),
        "precision": lambda step, loss: loss * (1 + 1e-3 * (-1) ** step),
        "drift": lambda step, loss: loss + 1e-4 * (step - RESUMED - 1),
        "wobble": lambda step, loss: loss + wobble.gauss(0, 0.03),
        "late": lambda step, loss: loss if step == RESUMED + 1 else loss + wobble.gauss(0, 0.03),
        "level": lambda step, loss: loss + 8.0,
        "next": lambda step, loss: _loss(step + 5),
    }
    states = ({}, {"rng_torch": "cd"}, {"data_position": 9}, {"optimizer_step": 0}, {"ema_norm": 7.5})
    more = ({}, {"first": 0}, {"first": 36}, {"settings": {"weight_decay": 1.0}}, {"code": ["train.py"]})
    for (name, change), state, others in itertools.product(losses.items(), states, more):
        said = _all_recorded(change, **others, **state)
        assert not contradictions(said), (name, state, others, said.sentence)


def test_a_cause_that_only_the_losses_suggest_is_one_of_several_with_what_to_record():
    said = judge(_old(), _new(lambda step, loss: loss + math.exp((RESUMED - step) / 4)))

    assert said.answer == DIFFERENT
    assert said.cause_probability < 0.5
    assert "It may be: the weights are not those of the checkpoint; " in said.sentence
    assert "To know it, record batches" in said.sentence


def test_whether_other_code_trains_the_same_cannot_be_said_without_a_step_twice():
    old, new = (
        _old(RESUMED, states=[_state("save")]),
        _new(states=[_state("load")], changed_code=["train.py"]),
    )

    assert judge(old, new).answer == UNKNOWN
    new.changed_code = []
    assert judge(old, new).answer == SAME
