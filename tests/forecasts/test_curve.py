import numpy as np
import pytest

from toolkit.telemetry.forecasts.curve import Curve, Forecast, NoForecast, Plan, forecast_curve
from toolkit.telemetry.forecasts.schedule import rest_of_schedule, since_jump

END = 1000


def falling(count=100, *, noise=0.02, power=0.5, floor=1.0, seed=0):
    """A curve recorded up to step 500 of 1,000."""
    steps = np.linspace(5, END / 2, count)
    values = floor + 4 * steps**-power + noise * np.random.default_rng(seed).normal(size=count)
    return Curve(steps, values)


@pytest.mark.parametrize("power", [0.3, 0.5, 1.0])
def test_a_power_law_ends_in_its_interval(power):
    answer = forecast_curve("train_loss", falling(power=power), Plan(END))

    assert isinstance(answer, Forecast)
    assert answer.low <= 1.0 + 4 * END**-power <= answer.high
    assert answer.low <= answer.middle <= answer.high
    assert answer.at_step == END
    assert answer.records == 100


def test_the_unit_of_the_loss_does_not_matter():
    small = falling()
    one = forecast_curve("train_loss", small, Plan(END))
    large = forecast_curve("train_loss", Curve(small.steps, small.values * 1000), Plan(END))

    assert large.low == pytest.approx(one.low * 1000, rel=1e-6)
    assert large.middle == pytest.approx(one.middle * 1000, rel=1e-6)
    assert large.high == pytest.approx(one.high * 1000, rel=1e-6)


def test_a_positive_loss_is_not_forecast_below_zero():
    answer = forecast_curve("train_loss", falling(floor=0.0, noise=0.0, power=1.0), Plan(END))

    assert answer.low >= 0


def test_the_band_leads_from_the_last_record_to_the_final_interval():
    answer = forecast_curve("train_loss", falling(), Plan(END))
    steps, low, middle, high = answer.band

    assert len(steps) <= 60
    assert steps[0] == answer.from_step
    assert steps[-1] == END
    assert (low[-1], middle[-1], high[-1]) == pytest.approx((answer.low, answer.middle, answer.high))
    assert np.all(low <= middle)
    assert np.all(middle <= high)


def test_the_chance_rises_with_the_value():
    answer = forecast_curve("train_loss", falling(), Plan(END))
    values = np.linspace(answer.low - 1, answer.high + 1, 50)
    chances = [answer.chance_below(value) for value in values]

    assert np.all(np.diff(chances) >= 0)
    assert answer.chance_below(answer.high) - answer.chance_below(answer.low) == pytest.approx(0.9, abs=0.04)
    assert 0.3 < answer.chance_below(answer.middle) < 0.7


@pytest.mark.parametrize(
    ("curve", "plan", "why"),
    [
        (falling(14), Plan(END), "14 records"),
        (falling(), Plan(None), "at which step it ends"),
        (falling(), Plan(500), "planned end"),
        (falling(), Plan(504), "planned end"),
        (falling(), Plan(20_000), "Less than 10%"),
        (Curve(np.arange(50.0), np.full(50, 2.0)), Plan(100), "the same in all 50 records"),
        (
            Curve(np.arange(100.0), np.r_[np.linspace(3, 2, 50), np.linspace(2, 60, 50)]),
            Plan(200),
            "diverged",
        ),
        # It swings as much as it fell, and it goes up.
        (Curve(np.arange(1, 101.0), 3 + np.cos(np.arange(1, 101.0) / 8)), Plan(400), "too unevenly"),
        (Curve(np.arange(1, 201.0), 0.1 + 0.01 * np.arange(1, 201.0)), Plan(400), "above where it began"),
    ],
)
def test_what_cannot_be_forecast_says_why(curve, plan, why):
    answer = forecast_curve("train_loss", curve, plan)

    assert isinstance(answer, NoForecast)
    assert why in answer.why


def test_a_validation_loss_is_not_forecast_if_the_training_diverged():
    rising = Curve(np.arange(1, 101.0), np.r_[np.linspace(3, 2, 50), np.linspace(2, 60, 50)])

    assert isinstance(forecast_curve("val_loss", falling(), Plan(END), other=falling()), Forecast)
    answer = forecast_curve("val_loss", falling(), Plan(END), other=rising)
    assert "the training loss is above where it began" in answer.why


def test_a_known_schedule_is_named():
    curve = falling()
    rates = Curve(curve.steps, 1e-3 * (1 - curve.steps / END))
    rest = rest_of_schedule(rates, END)
    with_schedule = forecast_curve("train_loss", curve, Plan(END, lr=rates, planned_lr=rest))

    assert "a learning rate that will fall by 50%" in with_schedule.basis
    assert "not known" in forecast_curve("train_loss", curve, Plan(END)).basis


@pytest.mark.parametrize("values", [[1e300, 1.0], [0.0, 1e-300], [1.0, 0.0], [-5.0, -6.0], [1e-9, 1e9]])
def test_odd_values_give_finite_numbers_or_a_reason(values):
    steps = np.arange(1, 61.0)
    answer = forecast_curve("train_loss", Curve(steps, np.resize(values, 60)), Plan(100))

    if isinstance(answer, Forecast):
        assert np.isfinite([answer.low, answer.middle, answer.high, *np.ravel(answer.band)]).all()
        assert answer.low <= answer.middle <= answer.high


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        (lambda done: 0.5 * (1 + np.cos(np.pi * done)), {}),
        (lambda done: 1 - done, {"lr_scheduler_type": "SchedulerType.LINEAR"}),
        (lambda done: np.full_like(done, 1.0), {"lr_scheduler_type": "constant_with_warmup"}),
    ],
)
def test_the_rest_of_a_schedule_is_read_from_what_was_recorded(shape, settings):
    steps = np.arange(0, 400, 10.0)
    warm = np.minimum(steps / 100, 1.0)
    rates = 3e-4 * warm * shape(np.clip((steps - 100) / (END - 100), 0, 1))
    rest = rest_of_schedule(Curve(steps, rates), END, settings)

    assert rest is not None
    assert rest.steps[-1] == END
    assert rest.values == pytest.approx(3e-4 * shape((rest.steps - 100) / (END - 100)), abs=1.5e-5)


def test_a_schedule_of_no_known_shape_is_not_guessed():
    steps = np.arange(0, 400, 10.0)

    assert rest_of_schedule(Curve(steps, 1e-3 / (1 + steps) ** 0.5), END) is None
    assert rest_of_schedule(Curve(steps, 1e-3 * 0.5 ** (steps // 250)), END) is None
    assert rest_of_schedule(Curve(steps[:12], 1e-3 * steps[:12]), END) is None
    assert rest_of_schedule(None, END) is None


def test_equal_falls_at_equal_distances_go_on():
    steps = np.arange(0, 400, 10.0)
    rest = rest_of_schedule(Curve(steps, 1e-3 * 0.5 ** (steps // 120)), END)

    assert rest.values[-1] == pytest.approx(1e-3 * 0.5 ** (END // 120))
    assert rest.values[0] == pytest.approx(1e-3 * 0.5**3)


@pytest.mark.parametrize(
    ("settings", "ends_at"),
    [
        ({"lr_scheduler": "constant"}, 1.0),
        ({"train.lr_scheduler_type": "warmup_stable_decay"}, 0.0),
        ({"lr_decay_style": "WSD"}, 0.0),
        ({"schedule": "cosine"}, None),
        ({"scheduler": "StepLR"}, None),
        ({"lr_scheduler": "piecewise_constant"}, None),
        ({"noise_scheduler": "constant"}, None),
        ({"scheduler": None, "lr": 1e-3}, None),
    ],
)
def test_a_rate_that_was_constant_says_nothing_of_what_comes_but_settings_may(settings, ends_at):
    steps = np.arange(0, 400, 10.0)
    rest = rest_of_schedule(Curve(steps, np.full(40, 1e-3)), END, settings)

    assert (rest is None) if ends_at is None else (rest.values[-1] == pytest.approx(1e-3 * ends_at))


@pytest.mark.parametrize("settings", [{}, {"lr_scheduler_type": "warmup_stable_decay"}])
@pytest.mark.parametrize("cut", [250, 500, 750])
@pytest.mark.parametrize("drop", [0.0, 0.05, 0.1])
def test_a_loss_that_falls_with_a_rate_that_was_held_ends_in_its_interval(settings, cut, drop):
    steps = np.arange(1.0, END + 1)
    for seed in range(10):
        noise = 0.02 * np.random.default_rng(seed).normal(size=END)
        cool = np.clip((steps / END - 0.8) / 0.2, 0, 1)
        values = (2 + 6 * steps**-0.4) * (1 - drop * cool) + noise
        lr = Curve(steps[:cut], np.full(cut, 1e-3))
        plan = Plan(END, lr=lr, planned_lr=rest_of_schedule(lr, END, settings))
        answer = forecast_curve("train_loss", Curve(steps[:cut], values[:cut]), plan)

        assert answer.low <= np.median(values[-END // 20 :]) <= answer.high
        assert np.all(np.diff(answer.quantiles) >= 0)


def fallen(at, *, until=600, seed=0):
    """A loss that falls to half at once, with the learning rate, and its plan."""
    steps = np.arange(1.0, until + 1)
    noise = 0.02 * np.random.default_rng(seed).normal(size=until)
    lr = Curve(steps, np.where(steps < at, 1e-3, 1e-4))
    return Curve(steps, (1 + 3 * steps**-0.5) * np.where(steps < at, 1.0, 0.5) + noise), Plan(END, lr=lr)


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_fell_with_its_rate_is_forecast_from_there_on(seed):
    answer = forecast_curve("train_loss", *fallen(300, seed=seed))

    assert answer.low <= 0.5 * (1 + 3 * END**-0.5) <= answer.high
    assert "600 records up to step 600 of 1,000, 301 of them since" in answer.basis
    # The fall is no trend that goes on.
    assert answer.middle > 0.4


def test_right_after_a_jump_of_the_learning_rate_nothing_is_forecast():
    assert "The learning rate jumped at step 590" in forecast_curve("train_loss", *fallen(590)).why


@pytest.mark.parametrize(
    ("rates", "since"),
    [
        (lambda steps: np.where(steps < 500, 1e-3, 1e-4), 500),
        (lambda steps: 1e-3 * 0.1 ** (steps // 250), 500),
        (lambda steps: 1e-3 * (1.1 + np.cos(np.pi * (steps % 300) / 300)), 300),
        (lambda steps: 1e-3 * np.minimum(steps / 50, 1.0), 0),
        (lambda steps: 1e-3 * 0.5 * (1 + np.cos(np.pi * steps / 600)), 0),
        (lambda steps: 1e-3 * 0.99**steps, 0),
    ],
)
def test_a_jump_of_the_learning_rate_is_not_taken_for_a_schedule_that_bends(rates, since):
    steps = np.arange(0.0, 599)
    curve, plan = since_jump(Curve(steps, steps), Plan(END, lr=Curve(steps, rates(steps))))

    assert curve.steps[0] == plan.lr.steps[0] == since


def test_a_rate_that_stays_makes_the_interval_no_wider():
    curve = falling()
    lr = Curve(curve.steps, np.full(100, 1e-3))
    wide, narrow = (
        forecast_curve("train_loss", curve, Plan(END, lr=lr, planned_lr=rest_of_schedule(lr, END, settings)))
        for settings in ({}, {"lr_scheduler": "constant"})
    )

    assert wide.middle - wide.low > 2 * (narrow.middle - narrow.low)
    assert "a learning rate that stays as it is" in narrow.basis
    assert "the rest of the learning-rate schedule is not known" in wide.basis
