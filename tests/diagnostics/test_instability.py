from __future__ import annotations

import math
import random

import pytest

from tests.diagnostics.synthetic_runs import changed, clean_run, curve, detect, detect_one_by_one, run_of
from tests.lengths import longer
from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.examiner import examine

KINDS = ("spike", "divergence")
SHAPES = {"falling": {"first": 3.0, "last": 0.5}, "flat": {"first": 1.0, "last": 1.0}}


def _found(losses, **others):
    return detect(run_of(losses, **others), *KINDS)


def _spiked(losses, at, *, times, length):
    """Multiply `length` losses by `times`, and let the rest come back by halves."""
    result = list(losses)
    for place in range(at, min(at + length, len(result))):
        result[place] *= times
    for place in range(at + length, min(at + length + 3, len(result))):
        result[place] *= 1.0 + (times - 1.0) * 0.5 ** (2 * (place - at - length + 1))
    return result


@pytest.mark.parametrize("noise", [0.002, 0.02, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("at", [20, 60, 150, 250])
@pytest.mark.parametrize("seed", range(longer(2, 3)))
def test_a_spike_that_recovers_is_one_resolved_spike(noise, shape, at, seed):
    losses = _spiked(curve(seed, noise=noise, **SHAPES[shape]), at, times=4.0, length=4)

    (finding,) = _found(losses)

    assert finding.kind == "spike"
    assert finding.severity == "warning"
    assert finding.start_step == at + 1
    assert finding.noticed_step <= at + 3
    assert finding.state == "resolved"
    assert at + 4 <= finding.end_step <= finding.resolved_step <= at + 16
    assert finding.evidence["peak"] == pytest.approx(max(losses[at : at + 4]))


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(longer(2, 3)))
@pytest.mark.parametrize(("times", "length"), [(8.0, 1), (3.0, 2), (2.4, 3)])
def test_the_fewer_records_of_a_sparse_log_are_high_the_higher_they_have_to_be(
    noise, shape, seed, times, length
):
    losses = curve(seed, records=120, noise=noise, **SHAPES[shape])
    losses[80 : 80 + length] = [times * loss for loss in losses[80 : 80 + length]]

    (finding,) = detect(run_of(losses, every=10), *KINDS)

    assert finding.kind == "spike"
    assert finding.start_step == 810
    assert finding.noticed_step <= 800 + 10 * length
    assert finding.count == length
    assert finding.evidence["peak"] == max(losses[80 : 80 + length])
    assert finding.state == "resolved"


@pytest.mark.parametrize("noise", [0.01, 0.1])
@pytest.mark.parametrize("times", [1.5, 2.0])
@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_a_single_odd_batch_is_not_reported(noise, times, seed):
    losses = curve(seed, noise=noise)
    losses[150] *= times

    assert _found(losses) == []


@pytest.mark.parametrize("noise", [0.01, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(longer(2, 3)))
def test_a_loss_that_goes_up_and_stays_is_an_open_divergence(noise, shape, seed):
    losses = curve(seed, noise=noise, **SHAPES[shape])
    losses[200:] = [6.0 * math.exp(random.Random(seed).gauss(0.0, noise)) for _ in losses[200:]]

    (finding,) = _found(losses)

    assert finding.kind == "divergence"
    assert finding.severity == "critical"
    assert finding.is_open
    assert finding.end_step is None
    assert (finding.start_step, finding.noticed_step) == (201, 201)
    assert finding.count == 100


def test_a_short_divergence_ends_as_a_spike():
    losses = curve(1, records=400, first=1.0, last=1.0)
    losses[150:190] = [4.0 * loss for loss in losses[150:190]]

    examiner, words = detect_one_by_one(run_of(losses[:185]))
    (during,) = [finding for finding in examiner.findings() if finding.kind in KINDS]
    (afterwards,) = _found(losses)

    assert words[during.id].kind == "divergence"
    assert during.severity == "critical"
    assert afterwards.id == during.id
    assert (afterwards.kind, afterwards.severity, afterwards.state) == ("spike", "warning", "resolved")
    assert "was back after step 190" in afterwards.message


def test_a_divergence_of_a_quarter_of_the_run_stays_one_after_its_recovery():
    losses = curve(1, records=300, first=1.0, last=1.0)
    losses[100:250] = [4.0 * loss for loss in losses[100:250]]

    (finding,) = _found(losses)

    assert (finding.kind, finding.state) == ("divergence", "resolved")
    assert 250 <= finding.end_step < 260
    assert f"was back after step {finding.end_step}" in finding.message


def test_a_divergence_that_took_a_quarter_of_the_run_is_a_spike_once_it_is_less_of_it():
    losses = curve(1, records=1000, first=1.0, last=1.0)
    losses[100:180] = [4.0 * loss for loss in losses[100:180]]

    (early,) = _found(losses[:250])
    (late,) = _found(losses)

    assert (early.kind, early.state) == ("divergence", "resolved")
    assert (late.id, late.kind, late.severity) == (early.id, "spike", "warning")


def test_a_spike_on_top_of_a_divergence_is_an_incident_of_its_own():
    losses = curve(1, records=400, first=1.0, last=1.0)
    losses[100:] = [4.0 * loss for loss in losses[100:]]
    losses[250:256] = [5.0 * loss for loss in losses[250:256]]

    divergence, spike = _found(losses)

    assert (divergence.kind, divergence.state, divergence.start_step) == ("divergence", "open", 101)
    assert (spike.kind, spike.state, spike.start_step) == ("spike", "resolved", 251)
    assert spike.noticed_step == spike.resolved_step


@pytest.mark.parametrize("climb", ["straight", "by factors", "in steps"])
def test_a_divergence_that_goes_on_is_one_finding(climb):
    losses = curve(1, records=400, first=1.0, last=1.0)
    for place in range(200):
        by = {"straight": 1.0 + 0.1 * place, "by factors": 1.05**place, "in steps": 3.0 ** (1 + place // 50)}
        losses[200 + place] *= by[climb]

    examiner, words = detect_one_by_one(run_of(losses))
    (finding,) = _found(losses)

    assert (finding.kind, finding.state) == ("divergence", "open")
    assert [each for each in examiner.findings() if each.kind in KINDS] == [finding]
    assert [each for each in words.values() if each.kind == "spike"] == []


def test_a_spike_that_comes_most_of_the_way_back_says_where_it_came_to_rest():
    losses = curve(1, records=400, noise=0.01, first=1.0, last=1.0)
    losses[100:106] = [20.0] * 6
    losses[106:] = [1.4 * loss for loss in losses[106:]]

    (spike,) = _found(losses[:120])
    (divergence,) = _found(losses)

    assert (spike.kind, spike.state) == ("spike", "resolved")
    assert "came to rest at 1.4" in spike.message
    assert (divergence.kind, divergence.state, divergence.id) == ("divergence", "open", spike.id)


def test_an_explosion_after_four_records_is_noticed_at_once():
    (finding,) = _found([2.0, 1.9, 2.1, 1.8, 40.0, 900.0, 1e6])

    assert (finding.start_step, finding.noticed_step) == (5, 5)
    assert finding.evidence["level"] == pytest.approx(1.95, abs=0.01)


@pytest.mark.parametrize("noise", [0.01, 0.05])
@pytest.mark.parametrize("seed", range(longer(2, 3)))
def test_a_climb_too_slow_to_be_a_jump_is_a_divergence(noise, seed):
    losses = curve(seed, records=600, noise=noise, first=2.0, last=1.0)
    losses = [loss * 1.002 ** max(0, place - 300) for place, loss in enumerate(losses)]

    (finding,) = _found(losses)

    assert finding.kind == "divergence"
    assert finding.is_open
    assert 200 <= finding.start_step <= 400
    assert finding.noticed_step < 560
    assert "has been climbing" in finding.message


@pytest.mark.parametrize("seed", range(longer(2, 3)))
def test_a_loss_that_collapses_to_one_higher_value_is_a_divergence(seed):
    losses = curve(seed, noise=0.02, first=1.0, last=1.0)
    losses[200:] = [1.151] * 100

    (finding,) = _found(losses)

    assert finding.kind == "divergence"
    assert finding.start_step in (201, 202)
    assert finding.noticed_step <= 206
    assert "has not moved since" in finding.message


def test_a_loss_that_goes_up_and_then_beyond_all_numbers_has_diverged():
    losses = curve(1)
    losses[200:] = [8.0, 12.0, *[math.nan] * 98]

    (finding,) = _found(losses)

    assert (finding.kind, finding.severity) == ("divergence", "critical")
    assert finding.is_open
    assert finding.evidence["now"] == 12.0


@pytest.mark.parametrize("level", [0.3, 3.0])
def test_a_resumed_session_with_another_level_is_not_reported(level):
    first, second = run_of(curve(1)), run_of(curve(2, first=level, last=level))
    second = [{**record, "global_step": record["global_step"] + 300} for record in second]

    found = detect(
        [{"event": "start", "session": 1}, *first, {"event": "start", "session": 2}, *second], *KINDS
    )

    assert found == []


@pytest.mark.parametrize("back_to", [1, 100, 280])
def test_a_rewind_to_an_earlier_step_with_its_higher_loss_is_not_reported(back_to):
    records = run_of(curve(1, noise=0.02))

    assert detect(records + records[back_to:], *KINDS) == []


def test_a_divergence_that_the_run_leaves_by_going_back_is_over():
    losses = curve(1)
    losses[200:] = [9.0] * 100
    records = run_of(losses)
    again = run_of(curve(1))[150:]

    (finding,) = detect(records + again, *KINDS)

    assert (finding.kind, finding.state, finding.end_step) == ("divergence", "resolved", 300)
    assert "went on from another state" in finding.message


def _with_a_warm_restart(length):
    losses = curve(1, records=400, noise=0.02)
    losses[250 : 250 + length] = [1.6 * loss for loss in losses[250 : 250 + length]]
    lr = [3e-4 * (0.5 + 0.5 * math.cos(math.pi * (place % 250) / 250)) for place in range(400)]
    return run_of(losses, lr=lr)


def test_a_rise_right_after_the_learning_rate_was_raised_is_an_info():
    (finding,) = detect(_with_a_warm_restart(8), *KINDS)

    assert (finding.kind, finding.severity, finding.state) == ("spike", "info", "resolved")


def test_a_rise_after_a_restart_that_lasts_is_named_so_and_no_divergence():
    records = _with_a_warm_restart(60)

    (during,) = detect(records[:305], *KINDS)
    (afterwards,) = detect(records, *KINDS)

    for finding in (during, afterwards):
        assert (finding.kind, finding.severity) == ("spike", "info")
        assert title_of(finding) == "Rise with the learning rate"
        assert finding.message.endswith("The learning rate was raised from 1.184e-08 to 0.0003 at step 251.")
        assert not any("batch" in text for text in (*finding.causes, *finding.advice))


def _restarting(noise, rises, *, records=1200, period=400, floor=0.4):
    """Return the records of a schedule that starts again; the loss is `rises(step, lr)` times its curve."""
    dice = random.Random(7)
    lrs = [1e-6 + 3e-4 * (0.5 + 0.5 * math.cos(math.pi * (at % period) / period)) for at in range(records)]
    losses = [
        (floor + 2.6 * math.exp(-at / 150)) * rises(at, lr) * math.exp(dice.gauss(0.0, noise))
        for at, lr in enumerate(lrs)
    ]
    return run_of(losses, lr=lrs)


@pytest.mark.parametrize("noise", [0.02, 0.15, 0.3])
@pytest.mark.parametrize("rise", [0.6, 1.0, 2.0])
def test_a_loss_that_rises_and_falls_with_the_learning_rate_is_no_alarm_in_any_noise(noise, rise):
    found = detect(_restarting(noise, lambda _, lr: 1.0 + rise * lr / 3e-4), *KINDS)

    assert [finding.severity for finding in found] == ["info"] * len(found)


@pytest.mark.parametrize("noise", [0.02, 0.15])
def test_a_loss_that_does_not_follow_the_learning_rate_down_has_diverged(noise):
    records = _restarting(noise, lambda at, _: 1.0 if at < 400 else 3.0)

    (during,) = detect(records[:600], *KINDS)
    (afterwards,) = detect(records[:800], *KINDS)

    assert (during.kind, during.severity) == ("spike", "info")
    assert (afterwards.kind, afterwards.severity, afterwards.id) == ("divergence", "critical", during.id)
    assert "has not come back" in afterwards.message
    assert "The learning rate was raised" in afterwards.message
    assert title_of(afterwards) == "Rise with the learning rate"
    assert not any("half" in line or "batch" in line for line in (*afterwards.causes, *afterwards.advice))


@pytest.mark.parametrize("noise", [0.02, 0.15, 0.3])
def test_a_loss_that_a_restart_takes_above_all_that_it_was_before_has_diverged(noise):
    (finding,) = detect(_restarting(noise, lambda at, _: 1.0 if at < 400 else 18.0)[:460], *KINDS)

    assert (finding.kind, finding.severity) == ("divergence", "critical")


def test_a_spike_long_after_a_restart_is_not_put_down_to_it():
    records = _restarting(0.02, lambda at, _: 4.0 if 600 <= at < 606 else 1.0)

    (finding,) = detect(records, *KINDS)

    assert (finding.severity, title_of(finding)) == ("warning", "Loss spike")
    assert "learning rate" not in finding.message


def test_a_divergence_in_a_warm_up_is_not_put_down_to_a_restart():
    lr = [3e-3 * min(1.0, (at + 1) / 300) for at in range(600)]
    losses = [
        loss * (1.0 if at < 200 else 1.0 + (at - 200) / 50) for at, loss in enumerate(curve(1, records=600))
    ]

    (finding,) = _found(losses, lr=lr)

    assert (finding.kind, finding.severity) == ("divergence", "critical")
    assert "raised" not in finding.message


def _noisy(losses, noise):
    dice = random.Random(1)
    return [loss * math.exp(dice.gauss(0.0, noise)) for loss in losses]


def _warming_up(peak):
    humps = ((peak - 1.0) * math.exp(-((place - 40) ** 2) / 200.0) for place in range(300))
    losses = [5.0 - 2.0 * min(1.0, place / 30.0) + hump for place, hump in enumerate(humps)]
    return run_of(_noisy(losses, 0.03), lr=[3e-4 * min(1.0, place / 40.0) for place in range(300)])


STABLE = {
    "NaN out of nothing": run_of([*curve(1)[:200], *[math.nan] * 100]),
    **{f"falling below zero, {seed}": run_of([loss - 5.0 for loss in curve(seed)]) for seed in range(2)},
    **{
        f"after {zeros} zeros": run_of([0.0] * zeros + curve(1, records=300, first=1.0, last=0.2))
        for zeros in (1, 3, 12, 60, 300)
    },
    **{f"constant {value}": run_of([value] * 500) for value in (0.0, 1e-9, 1.0, 1e9, -1.0)},
    "fallen to nothing": run_of([10.0 ** -(place / 10.0) for place in range(80)] + _noisy([1e-8] * 200, 2.0)),
    **{f"a warm-up to {peak}": _warming_up(peak) for peak in (1.2, 1.6)},
    # The highest on the old axis is about 7; these are far above it, and far below the losses from before.
    "a first loss below zero": run_of(
        curve(1, records=60, first=1000.0, last=1000.0) + [-1.0, 50.0, 52.0, 49.0, 51.0, 50.0, 48.0, 50.0] * 5
    ),
}


@pytest.mark.parametrize("records", STABLE.values(), ids=STABLE)
def test_a_loss_without_a_jump_is_not_reported(records):
    assert detect(records, *KINDS) == []


@pytest.mark.parametrize("then", [1, 100])
def test_another_log_every_is_no_incident(then):
    records = clean_run(3, noise=0.02, then_log_every=then, log_every=10, with_system=False)

    assert detect(records, *KINDS) == []


@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_a_loss_below_zero_that_jumps_is_found(seed):
    losses = [loss - 5.0 for loss in curve(seed)]
    losses[200:206] = [3.0] * 6

    (finding,) = _found(losses)

    assert (finding.kind, finding.start_step) == ("spike", 201)
    assert finding.state == "resolved"


def test_losses_that_change_their_sign_all_the_time_hardly_ever_seem_unstable():
    alarms = 0
    for seed in range(longer(40, 100)):
        dice = random.Random(seed)
        alarms += len(_found([dice.gauss(0.0, 0.05) for _ in range(300)]))

    # Where there are no ratios a level of some fifty noisy values is a guess: one in a hundred runs is misjudged.
    assert alarms <= 1


@pytest.mark.parametrize("first_below", [30, 31, 40, 60])
def test_a_first_negative_loss_resolves_open_incidents_and_starts_over(first_below):
    losses = curve(1, records=200, first=50.0, last=50.0)
    losses[25:] = [500.0 * loss / 50.0 for loss in losses[25:]]
    losses[first_below:] = [-0.1 - 0.001 * loss for loss in losses[first_below:]]

    (finding,) = _found(losses)

    assert finding.state == "resolved"
    assert finding.resolved_step == first_below + 1


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_unit_of_a_loss_that_changes_its_sign_does_not_matter(scale):
    dice = random.Random(3)
    losses = [dice.gauss(0.0, 1.0) for _ in range(300)]
    losses[200:] = [40.0] * 100

    plain = [(each.id, each.kind, each.noticed_step) for each in _found(losses)]

    assert [kind for _, kind, _ in plain] == ["divergence"]
    assert [
        (each.id, each.kind, each.noticed_step) for each in _found([scale * loss for loss in losses])
    ] == plain


def test_two_spikes_far_apart_are_two_and_two_close_together_are_one_that_came_back():
    losses = curve(1, records=500, noise=0.02, first=1.0, last=1.0)
    for at in (100, 112, 300):
        losses = _spiked(losses, at, times=4.0, length=4)

    first, second = _found(losses)

    assert (first.start_step, first.repeats) == (101, 1)
    assert (second.start_step, second.repeats) == (301, 0)


def test_the_loss_that_an_epoch_or_evaluation_record_repeats_is_no_point_of_the_curve():
    records = run_of(curve(1))
    records[150:150] = [
        {"event": "epoch", "global_step": 150, "train_loss": 40.0},
        {"event": "eval", "global_step": 150, "loss": 40.0},
    ]

    assert list(examine(records)) == []


def test_a_metric_keeps_the_name_that_the_run_gave_it():
    records = [{"global_step": place, "loss": loss} for place, loss in enumerate(curve(1))]
    records = changed(
        [{"event": "", **record} for record in records],
        "loss",
        lambda step, loss: loss * (9 if step > 200 else 1),
    )

    (finding,) = detect(records, *KINDS)

    assert finding.metric == "loss"
    assert finding.message.startswith("loss left its level")


# ---------------------------------------------------------------- a run that diverges at the start

OF_LR_1 = [
    *(0.2276, 1.319, 1.277, 0.836, 1.001, 1.413, 0.743, 0.906, 0.88, 0.97),
    *(1.12, 0.93, 0.79, 1.05, 0.9, 0.86, 0.98, 1.01, 0.94, 0.89),
]
"""A real run with a learning rate of 1: the first record has the loss of the untouched weights, no other one has."""


@pytest.mark.parametrize("lead", [1, 3, 6])
def test_a_run_that_leaves_its_first_losses_at_once_diverged_at_the_start(lead):
    losses = [0.22, 0.24, 0.23, 0.25, 0.22][: lead - 1] + OF_LR_1

    (finding,) = _found(losses)

    assert (finding.kind, finding.severity, finding.state) == ("divergence", "critical", "open")
    assert finding.start_step == lead + 1
    assert finding.noticed_step <= lead + 15
    assert finding.evidence["first"] == pytest.approx(0.23, abs=0.01)
    assert "first level" in finding.message
    assert "Start again with a tenth of the learning rate." in finding.advice
    assert title_of(finding) == "Diverged at the start"


def test_a_run_that_comes_back_to_its_first_losses_is_resolved():
    (finding,) = _found([*OF_LR_1, *curve(3, records=300, first=0.25, last=0.1)])

    assert finding.state == "resolved"
    assert title_of(finding) != "Diverged at the start"
    assert not [text for text in finding.advice if "learnt nothing" in text]


LEFT_IN_STEPS = [
    *(2.33, 2.28, 164.4, 11993.1, 250920.3, 215472.6, 2361072.5, 2772775.8, 2212293.9, 184927.7, 234900.7),
    *(264676.2, 22928.0, 2176205.9, 208799.6, 215979.7, 255139.1, 21811.0, 2558993.1, 22389.4, 245355.2),
    *(200358.8, 240909.3, 1987888.6, 2313700.0, 2302357.9, 274147.7, 24701.3, 24973.8, 25634.9, 26010.2),
]


@pytest.mark.parametrize("losses", [LEFT_IN_STEPS, [2.3, 12516.9, 13000.0, 9e12, 8e12, *[9e12] * 30]])
def test_the_first_level_is_that_of_the_first_losses_however_the_run_left_it(losses):
    finding = _found(losses)[0]

    assert finding.evidence["level"] == losses[0]
    assert finding.start_step == next(step for step, loss in enumerate(losses, 1) if loss > 3.0)


@pytest.mark.parametrize("seed", range(longer(4, 40)))
@pytest.mark.parametrize("noise", [0.1, 0.4])
def test_a_first_loss_that_is_low_by_luck_is_no_divergence(seed, noise):
    losses = curve(seed, records=60, noise=noise, first=1.0, last=0.9)
    losses[0] = min(losses)

    assert _found(losses) == []


def test_a_resumed_run_is_not_compared_with_its_first_losses():
    first = run_of(curve(1, records=30, first=1.0, last=0.5))
    resumed = [{"event": "start", "session": 2}, *run_of([0.2, *curve(2, records=30, first=0.5, last=0.45)])]

    assert detect([*first, *resumed], *KINDS) == []


def test_one_record_far_above_all_others_is_a_spike_in_any_noise():
    dice = random.Random(5)
    losses = [1e-5 * math.exp(dice.gauss(0.0, 0.5)) for _ in range(80)]
    losses[60] = 4e-4

    findings = detect(run_of(losses), "spike", "divergence")

    assert [finding.start_step for finding in findings] == [61]


def test_a_short_run_that_climbs_back_slowly_diverges():
    dice = random.Random(6)
    losses = [
        (2.0 - 0.06 * min(place, 20) + 0.03 * max(0, place - 20)) * math.exp(dice.gauss(0.0, 0.02))
        for place in range(44)
    ]

    assert [finding.kind for finding in detect(run_of(losses), "spike", "divergence")] == ["divergence"]


@pytest.mark.parametrize("other", ["reward", "d_loss"])
def test_a_loss_that_is_not_meant_to_fall_is_an_info_at_most(other):
    losses = curve(1, first=1.0, last=1.0)
    losses[200:] = [3.0 * loss for loss in losses[200:]]

    (finding,) = _found(losses, **{other: [1.0] * len(losses)})

    assert (finding.kind, finding.severity) == ("divergence", "info")
