"""A loss that jumps, goes up and stays, or leaves its first level; and one that only follows its learning rate."""

from __future__ import annotations

import itertools
import math
import random
from functools import partial

import pytest

from tests.diagnostics.synthetic_runs import changed, clean_run, curve, detect, detect_one_by_one, run_of
from tests.diagnostics.what_is_said import Between, Saying, Seeds, contract_of, put, times
from tests.lengths import longer

KINDS = ("spike", "divergence")
SHAPES = {"falling": {"first": 3.0, "last": 0.5}, "flat": {"first": 1.0, "last": 1.0}}
FEW_SEEDS = partial(Seeds, usual=2, long=3)
SPIKE = {"kind": "spike", "severity": "warning", "state": "resolved"}
DIVERGENCE = {"kind": "divergence", "severity": "critical", "state": "open"}


def flat(seed=1, *, level=1.0, **about):
    return curve(seed, first=level, last=level, **about)


def spiked(losses, at, *, factor=4.0, length=4):
    """Multiply `length` losses, and let the rest come back by halves."""
    result = times(losses, at, at + length, factor)
    for place in range(at + length, min(at + length + 3, len(result))):
        result[place] *= 1.0 + (factor - 1.0) * 0.5 ** (2 * (place - at - length + 1))
    return result


def run(change, **about):
    """Return what makes a run of a seed from its changed losses."""
    return lambda seed: run_of(change(curve(seed, **about)))


def noisy(losses, noise, seed=1):
    dice = random.Random(seed)
    return [loss * math.exp(dice.gauss(0.0, noise)) for loss in losses]


def climbing(by):
    """Return losses that go up from place 200 on, each time by `by(place)`."""
    losses = flat(records=400)
    return [loss * (by(place - 200) if place >= 200 else 1.0) for place, loss in enumerate(losses)]


def around_zero(seed):
    dice = random.Random(seed)
    return [dice.gauss(0.0, 0.3) for _ in range(300)]


CLIMBS = {
    "straight": climbing(lambda place: 1.0 + 0.1 * place),
    "by factors": climbing(lambda place: 1.05**place),
    "in steps": climbing(lambda place: 3.0 ** (1 + place // 50)),
}

# ---------------------------------------------------------------- with the learning rate


def warm_restart(length):
    losses = curve(1, records=400, noise=0.02)
    lr = [3e-4 * (0.5 + 0.5 * math.cos(math.pi * (place % 250) / 250)) for place in range(400)]
    return run_of(times(losses, 250, 250 + length, 1.6), lr=lr)


def restarting(noise, rises):
    """Return the records of a schedule that starts again; the loss is `rises(step, lr)` times its curve."""
    lrs = [1e-6 + 3e-4 * (0.5 + 0.5 * math.cos(math.pi * (at % 400) / 400)) for at in range(1200)]
    losses = [(0.4 + 2.6 * math.exp(-at / 150)) * rises(at, lr) for at, lr in enumerate(lrs)]
    return run_of(noisy(losses, noise, 7), lr=lrs)


def stays_up(noise):
    return restarting(noise, lambda at, _: 1.0 if at < 400 else 3.0)


def warming_up(peak):
    humps = ((peak - 1.0) * math.exp(-((place - 40) ** 2) / 200.0) for place in range(300))
    losses = [5.0 - 2.0 * min(1.0, place / 30.0) + hump for place, hump in enumerate(humps)]
    return run_of(noisy(losses, 0.03), lr=[3e-4 * min(1.0, place / 40.0) for place in range(300)])


def climbing_with_the_warm_up(noise, seed):
    """From step 1000 of a warm-up of 2000 on."""
    dice = random.Random(seed)

    def climbs(step, loss):
        level = 2.0 - 0.2 * min(1.0, step / 500) + 3.0 * max(0.0, (step - 1000) / 1000)
        return min(level, 7.0) * math.exp(dice.gauss(0.0, noise))

    return changed(clean_run(seed, records=2000), "train_loss", climbs)


def rising_as_warmed_up(seed):
    """A rise after the first dozen records, in which the rate is tripled again and again."""
    losses = put(curve(seed), 14, [9.0] * 20)
    return run_of(losses, lr=[1e-3 * min(1.0, (place + 1) / 40) for place in range(300)])


WITH_THE_RATE = {
    "kind": "spike",
    "severity": "info",
    "title": "Rise with the learning rate",
    "message": Saying("The learning rate was raised from 1.184e-08 to 0.0003 at step 251."),
    "causes": Saying(without=["batch"]),
    "advice": Saying(without=["batch"]),
}
OF_RATES = {
    "a short rise right after the rate was raised": (
        warm_restart(8),
        {"kind": "spike", "severity": "info", "state": "resolved"},
    ),
    "a rise that lasts, so far": (warm_restart(60)[:305], WITH_THE_RATE),
    "a rise that lasts": (warm_restart(60), WITH_THE_RATE),
    **{
        f"a loss that has not followed the rate down yet in noise of {noise}": (
            stays_up(noise)[:600],
            {"kind": "spike", "severity": "info", "start_step": Between(401, 410)},
        )
        for noise in (0.02, 0.15)
    },
    **{
        f"a loss that does not follow the rate down in noise of {noise}": (
            stays_up(noise)[:800],
            {
                **DIVERGENCE,
                "start_step": Between(401, 410),
                "message": Saying("has not come back", "The learning rate was raised"),
                "title": "Rise with the learning rate",
                "causes": Saying(without=["half", "batch"]),
                "advice": Saying(without=["half", "batch"]),
            },
        )
        for noise in (0.02, 0.15)
    },
    **{
        f"a restart takes it above all that it was before in noise of {noise}": (
            restarting(noise, lambda at, _: 1.0 if at < 400 else 18.0)[:460],
            DIVERGENCE,
        )
        for noise in (0.02, 0.15, 0.3)
    },
    **{
        f"a loss that climbs with the warm-up in noise of {noise}": (
            FEW_SEEDS(lambda seed, noise=noise: climbing_with_the_warm_up(noise, seed)),
            {**DIVERGENCE, "start_step": Between(600, 1600), "noticed_step": Between(1000, 2000)},
        )
        for noise in (0.02, 0.1, 0.2)
    },
    "a warm-up does not explain a rise": (
        FEW_SEEDS(rising_as_warmed_up),
        {"title": "Loss spike", "message": Saying(without=["learning rate"])},
    ),
    "a spike long after a restart": (
        restarting(0.02, lambda at, _: 4.0 if 600 <= at < 606 else 1.0),
        {"severity": "warning", "title": "Loss spike", "message": Saying(without=["learning rate"])},
    ),
    "a divergence in a warm-up": (
        run_of(
            [loss * max(1.0, 1 + (at - 200) / 50) for at, loss in enumerate(curve(1, records=600))],
            lr=[3e-3 * min(1.0, (at + 1) / 300) for at in range(600)],
        ),
        {**DIVERGENCE, "message": Saying(without=["raised"])},
    ),
}

# ---------------------------------------------------------------- a run that diverges at the start

OF_LR_1 = [
    *(0.2276, 1.319, 1.277, 0.836, 1.001, 1.413, 0.743, 0.906, 0.88, 0.97),
    *(1.12, 0.93, 0.79, 1.05, 0.9, 0.86, 0.98, 1.01, 0.94, 0.89),
]
"""A real run with a learning rate of 1: the first record has the loss of the untouched weights, no other one has."""
LEFT_IN_STEPS = [
    *(2.33, 2.28, 164.4, 11993.1, 250920.3, 215472.6, 2361072.5, 2772775.8, 2212293.9, 184927.7, 234900.7),
    *(264676.2, 22928.0, 2176205.9, 208799.6, 215979.7, 255139.1, 21811.0, 2558993.1, 22389.4, 245355.2),
    *(200358.8, 240909.3, 1987888.6, 2313700.0, 2302357.9, 274147.7, 24701.3, 24973.8, 25634.9, 26010.2),
]
AT_THE_START = {
    **{
        f"it leaves its first {lead} losses at once": (
            run_of([0.22, 0.24, 0.23, 0.25, 0.22][: lead - 1] + OF_LR_1),
            {
                **DIVERGENCE,
                "start_step": lead + 1,
                "noticed_step": Between(lead + 1, lead + 15),
                "first": Between(0.22, 0.24),
                "message": Saying("first level"),
                "advice": Saying("Start again with a tenth of the learning rate."),
                "title": "Diverged at the start",
            },
        )
        for lead in (1, 3, 6)
    },
    "it comes back to its first losses": (
        run_of([*OF_LR_1, *curve(3, records=300, first=0.25, last=0.1)]),
        {"state": "resolved", "title": "Loss spike", "advice": Saying(without=["learnt nothing"])},
    ),
    "an explosion after four records": (
        run_of([2.0, 1.9, 2.1, 1.8, 40.0, 900.0, 1e6]),
        {"start_step": 5, "noticed_step": 5, "level": Between(1.94, 1.96)},
    ),
}

# ---------------------------------------------------------------- the whole table

HALF_OF_IT = times(flat(records=400), 150, 190, 4.0)
QUARTER = times(flat(records=1000), 100, 180, 4.0)
AT_REST = [*flat(records=400, noise=0.01)[:100], *[20.0] * 6]
AT_REST += [1.4 * loss for loss in flat(records=400, noise=0.01)[106:]]
TWO_FAR_APART = flat(records=500, noise=0.02)
for _at in (100, 112, 300):
    TWO_FAR_APART = spiked(TWO_FAR_APART, _at)

SAID = {
    **{
        f"a spike at {at} of a {shape} loss in noise of {noise}": (
            FEW_SEEDS(run(partial(spiked, at=at), noise=noise, **SHAPES[shape])),
            {
                **SPIKE,
                "start_step": at + 1,
                "noticed_step": Between(at + 1, at + 3),
                "end_step": Between(at + 4, at + 16),
                "resolved_step": Between(at + 4, at + 16),
            },
        )
        for at, shape, noise in itertools.product((20, 60, 150, 250), SHAPES, (0.002, 0.02, 0.1))
    },
    # The fewer records of a sparse log are high, the higher they have to be.
    **{
        f"{length} records of a sparse {shape} log are {factor} times as high in noise of {noise}": (
            FEW_SEEDS(
                lambda seed, length=length, factor=factor, about=(noise, shape): run_of(
                    times(
                        curve(seed, records=120, noise=about[0], **SHAPES[about[1]]), 80, 80 + length, factor
                    ),
                    every=10,
                )
            ),
            {**SPIKE, "start_step": 810, "noticed_step": Between(810, 800 + 10 * length), "count": length},
        )
        for (factor, length), shape, noise in itertools.product(
            ((8.0, 1), (3.0, 2), (2.4, 3)), SHAPES, (0.01, 0.05, 0.1)
        )
    },
    **{
        f"a {shape} loss that goes up and stays in noise of {noise}": (
            FEW_SEEDS(
                run(
                    lambda losses, noise=noise: [*losses[:200], *noisy([6.0] * 100, noise)],
                    noise=noise,
                    **SHAPES[shape],
                )
            ),
            {**DIVERGENCE, "end_step": None, "start_step": 201, "noticed_step": 201, "count": 100},
        )
        for shape, noise in itertools.product(SHAPES, (0.01, 0.1))
    },
    "a short divergence, so far": (run_of(HALF_OF_IT[:185]), {**DIVERGENCE, "id": "1-spike-train_loss-151"}),
    "a short divergence ends as a spike": (
        run_of(HALF_OF_IT),
        {**SPIKE, "id": "1-spike-train_loss-151", "message": Saying("was back after step 190")},
    ),
    "a divergence of a quarter of the run stays one after its recovery": (
        run_of(times(flat(), 100, 250, 4.0)),
        {
            "kind": "divergence",
            "state": "resolved",
            "end_step": Between(250, 259),
            "message": Saying("was back after step 25"),
        },
    ),
    "a divergence that took a quarter of the run": (
        run_of(QUARTER[:250]),
        {"kind": "divergence", "state": "resolved", "id": "1-spike-train_loss-101"},
    ),
    "it is a spike once it is less of the run": (run_of(QUARTER), {**SPIKE, "id": "1-spike-train_loss-101"}),
    "a spike on top of a divergence": (
        run_of(times(times(flat(records=400), 100, None, 4.0), 250, 256, 5.0)),
        [{**DIVERGENCE, "start_step": 101}, {**SPIKE, "start_step": 251}],
    ),
    **{f"a divergence that goes on {name} is one": (run_of(up), DIVERGENCE) for name, up in CLIMBS.items()},
    "a spike that comes most of the way back": (
        run_of(AT_REST[:120]),
        {**SPIKE, "id": "1-spike-train_loss-101", "message": Saying("came to rest at 1.4")},
    ),
    "and that is where it stays": (run_of(AT_REST), {**DIVERGENCE, "id": "1-spike-train_loss-101"}),
    **{
        f"a climb too slow to be a jump in noise of {noise}": (
            FEW_SEEDS(
                run(
                    lambda losses: [loss * 1.002 ** max(0, place - 300) for place, loss in enumerate(losses)],
                    records=600,
                    noise=noise,
                    first=2.0,
                    last=1.0,
                )
            ),
            {
                **DIVERGENCE,
                "start_step": Between(200, 400),
                "noticed_step": Between(200, 559),
                "message": Saying("has been climbing"),
            },
        )
        for noise in (0.01, 0.05)
    },
    "it collapses to one higher value": (
        FEW_SEEDS(lambda seed: run_of(put(flat(seed, noise=0.02), 200, [1.151] * 100))),
        {
            "kind": "divergence",
            "start_step": Between(201, 202),
            "noticed_step": Between(201, 206),
            "message": Saying("has not moved since"),
        },
    ),
    "it goes up and then beyond all numbers": (
        run_of(put(curve(1), 200, [8.0, 12.0, *[math.nan] * 98])),
        {**DIVERGENCE, "now": 12.0},
    ),
    "the run leaves a divergence by going back": (
        [*run_of(put(curve(1), 200, [9.0] * 100)), *run_of(curve(1))[150:]],
        {
            "kind": "divergence",
            "state": "resolved",
            "end_step": 300,
            "message": Saying("went on from another state"),
        },
    ),
    "a single value around zero": (
        FEW_SEEDS(lambda seed: run_of(put(around_zero(seed), 200, [9.0]))),
        {**SPIKE, "severity": "info", "start_step": 201},
    ),
    "a loss around zero that goes up and stays": (
        FEW_SEEDS(lambda seed: run_of(put(around_zero(seed), 200, [9.0] * 100))),
        {**DIVERGENCE, "start_step": 201},
    ),
    "a loss below zero jumps": (
        Seeds(lambda seed: run_of(put([loss - 5.0 for loss in curve(seed)], 200, [3.0] * 6))),
        {**SPIKE, "start_step": 201},
    ),
    **{
        f"a first negative loss at {first} resolves what is open and starts over": (
            run_of(
                put(
                    times(flat(records=200, level=50.0), 25, None, 10.0),
                    first,
                    [-0.1 - 0.001 * loss for loss in flat(records=200, level=50.0)[first:]],
                )
            ),
            {"state": "resolved", "resolved_step": first + 1},
        )
        for first in (30, 31, 40, 60)
    },
    "two spikes far apart are two, and two close together are one that came back": (
        run_of(TWO_FAR_APART),
        [{"start_step": 101, "repeats": 1}, {"start_step": 301, "repeats": 0}],
    ),
    "the metric keeps the name that the run gave it": (
        [
            {"event": "", "global_step": place, "loss": loss * (9 if place > 200 else 1)}
            for place, loss in enumerate(curve(1))
        ],
        {"metric": "loss", "message": Saying("loss left its level")},
    ),
    "one record far above all others in any noise": (
        run_of(put(noisy([1e-5] * 80, 0.5, 5), 60, [4e-4])),
        {"start_step": 61},
    ),
    "a short run that climbs back slowly": (
        run_of(
            noisy([2.0 - 0.06 * min(at, 20) + 0.03 * max(0, at - 20) for at in range(44)], 0.02, 6),
        ),
        {"kind": "divergence"},
    ),
    **{
        f"a loss that is not meant to fall, next to {other}": (
            run_of(times(flat(), 200, None, 3.0), **{other: [1.0] * 300}),
            {"kind": "divergence", "severity": "info"},
        )
        for other in ("reward", "charts/episodic_return", "d_loss", "train/loss_G")
    },
    "a reward that comes with other records": (
        [{"event": "step", "global_step": 0, "reward": 1.0}, *run_of(times(flat(), 200, None, 3.0))],
        {"kind": "divergence", "severity": "info"},
    ),
    "it is lower than before when it would be called a divergence": (
        run_of(put(times(flat(noise=0.02), 100, 140, 4.0), 115, [0.5] * 2)),
        {**SPIKE, "message": Saying(without=["has not come back"])},
    ),
    **OF_RATES,
    **AT_THE_START,
}


def resumed(*sessions):
    """Return the records of sessions that go on from step 300 each."""
    return [
        record
        for number, losses in enumerate(sessions)
        for record in (
            {"event": "start", "session": 1 + number},
            *({**each, "global_step": each["global_step"] + 300 * number} for each in run_of(losses)),
        )
    ]


SILENT = {
    **{
        f"a single odd batch of {factor} times in noise of {noise}": Seeds(
            run(lambda losses, factor=factor: times(losses, 150, 151, factor), noise=noise)
        )
        for factor, noise in itertools.product((1.5, 2.0), (0.01, 0.1))
    },
    **{f"resumed at {level}": resumed(curve(1), flat(2, level=level)) for level in (0.3, 3.0)},
    "resumed with a low first loss": resumed(
        curve(1, records=30, first=1.0, last=0.5), [0.2, *curve(2, records=30, first=0.5, last=0.45)]
    ),
    **{
        f"a rewind to step {step} with its higher loss": [
            *run_of(curve(1, noise=0.02)),
            *run_of(curve(1, noise=0.02))[step:],
        ]
        for step in (1, 100, 280)
    },
    **{
        f"another log_every: {then}": clean_run(3, noise=0.02, then_log_every=then, with_system=False)
        for then in (1, 100)
    },
    **{
        f"a first loss that is low by luck in noise of {noise}": Seeds(
            run(lambda losses: [min(losses), *losses[1:]], records=60, noise=noise, first=1.0, last=0.9),
            4,
            40,
        )
        for noise in (0.1, 0.4)
    },
    "what an epoch or evaluation record repeats is no point of the curve": put(
        run_of(curve(1)),
        150,
        [
            {"event": "epoch", "global_step": 150, "train_loss": 40.0},
            {"event": "eval", "global_step": 150, "loss": 40.0},
        ],
    ),
    "NaN out of nothing": run_of([*curve(1)[:200], *[math.nan] * 100]),
    **{f"falling below zero, {seed}": run_of([loss - 5.0 for loss in curve(seed)]) for seed in range(2)},
    **{
        f"after {zeros} zeros": run_of([0.0] * zeros + curve(1, records=300, first=1.0, last=0.2))
        for zeros in (1, 3, 12, 60, 300)
    },
    **{f"constant {value}": run_of([value] * 500) for value in (0.0, 1e-9, 1.0, 1e9, -1.0)},
    "fallen to nothing": run_of([10.0 ** -(place / 10.0) for place in range(80)] + noisy([1e-8] * 200, 2.0)),
    **{f"a warm-up to {peak}": warming_up(peak) for peak in (1.2, 1.6)},
    # The highest on the old axis is about 7; these are far above it, and far below the losses from before.
    "a first loss below zero": run_of(
        curve(1, records=60, first=1000.0, last=1000.0) + [-1.0, 50.0, 52.0, 49.0, 51.0, 50.0, 48.0, 50.0] * 5
    ),
}

test_findings_have_these_facts, test_a_loss_without_a_jump_is_not_reported = contract_of(KINDS, SAID, SILENT)


@pytest.mark.parametrize("losses", CLIMBS.values(), ids=CLIMBS)
def test_a_divergence_that_goes_on_is_never_called_a_spike_meanwhile(losses):
    _, words = detect_one_by_one(run_of(losses))

    assert {each.kind for each in words.values()} & {*KINDS} == {"divergence"}


@pytest.mark.parametrize("noise", [0.02, 0.15, 0.3])
@pytest.mark.parametrize("rise", [0.6, 1.0, 2.0])
def test_a_loss_that_rises_and_falls_with_the_learning_rate_is_no_alarm_in_any_noise(noise, rise):
    found = detect(restarting(noise, lambda _, lr: 1.0 + rise * lr / 3e-4), *KINDS)

    assert {finding.severity for finding in found} <= {"info"}


def test_losses_that_change_their_sign_all_the_time_hardly_ever_seem_unstable():
    alarms = 0
    for seed in range(longer(40, 100)):
        dice = random.Random(seed)
        alarms += len(detect(run_of([dice.gauss(0.0, 0.05) for _ in range(300)]), *KINDS))

    # Where there are no ratios a level of some fifty noisy values is a guess: one in a hundred runs is misjudged.
    assert alarms <= 1


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_unit_of_a_loss_that_changes_its_sign_does_not_matter(scale):
    dice = random.Random(3)
    plain = run_of(put([dice.gauss(0.0, 1.0) for _ in range(300)], 200, [40.0] * 100))
    scaled = changed(plain, "train_loss", lambda _, loss: scale * loss)
    one, other = (
        [(each.id, each.kind, each.noticed_step) for each in detect(records, *KINDS)]
        for records in (plain, scaled)
    )

    assert [kind for _, kind, _ in one] == ["divergence"]
    assert other == one


@pytest.mark.parametrize("losses", [LEFT_IN_STEPS, [2.3, 12516.9, 13000.0, 9e12, 8e12, *[9e12] * 30]])
def test_the_first_level_is_that_of_the_first_losses_however_the_run_left_it(losses):
    finding = detect(run_of(losses), *KINDS)[0]

    assert finding.evidence["level"] == losses[0]
    assert finding.start_step == next(step for step, loss in enumerate(losses, 1) if loss > 3.0)
