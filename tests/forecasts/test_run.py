"""The forecasts of a run: when one is refused, when the run ends, what runs out, and the best other run."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from tests.made_runs import SECONDS_A_STEP, append, write_run
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.forecasts.curve import Forecast, NoForecast
from toolkit.telemetry.forecasts.ends import ExpectedTime, end_of, full_at
from toolkit.telemetry.forecasts.run import Limit, RunForecast, forecast_run
from toolkit.telemetry.forecasts.words import said_of
from toolkit.telemetry.runs.sources.local_store import LocalStore

DONE, PLANNED = 100, 200
AHEAD_S = 3600.0
"""The last record is so far ahead of the clock, so that the run is alive however long a test takes."""


def loss(step, level=0.3):
    return level + 2.0 * (step + 1) ** -0.5 + 0.01 * ((step * 7) % 5)


def forecast_of(folder, **more):
    """Return the forecasts of a run folder, read and examined."""
    store = LocalStore([folder.parent], cache_dir=None)
    store.refresh(folder.name, wait_s=60)
    store.examine(folder.name, wait_s=60)
    return forecast_run(store, folder.name, **more)


def live_run(root, name="live", *, done=DONE, curves=None, **more):
    known = {"train_loss": loss, "lr": lambda step: 1e-3 * (1 - step / PLANNED)}
    more = {
        "summary": {"max_steps": PLANNED, "train_loss": 0.5},
        "status": "running",
        "age_s": -AHEAD_S,
    } | more
    return write_run(root, name, curves=known | (curves or {}), sessions=(range(1, done + 1),), **more)


def test_a_live_run_has_a_final_loss_and_an_end(tmp_path):
    before = time.time()
    folder = live_run(tmp_path)
    after = time.time()
    found = forecast_of(folder)

    assert isinstance(found.train, Forecast)
    assert (found.train.from_step, found.train.at_step) == (DONE, PLANNED)
    assert found.val is None
    needed = AHEAD_S + (PLANNED - DONE) * SECONDS_A_STEP
    assert before + needed - 20 < found.ends.middle < after + needed + 20
    assert found.limits == ()
    assert found.passing is None


def refusals(root):
    """Yield runs that cannot be forecast, and a part of the reason."""
    yield live_run(root, "few", done=14), "14 records"
    yield live_run(root, "no plan", summary={"train_loss": 0.5}), "at which step it ends"
    yield live_run(root, "done", status="finished", summary={"max_steps": DONE}), "reached its planned end"
    resumed = (range(1, 60), range(40, DONE))
    curves = {"train_loss": loss}
    yield write_run(root, "resumed", curves=curves, sessions=resumed, status="running"), "resumed at step 40"
    changed = live_run(root, "changed")
    change = {"event": "control_change", "status": "applied", "global_step": 50, "knobs/lr_scale/new": 0.5}
    append(changed, [{"time": time.time(), "session": 1, "seq": 900, **change}])
    yield changed, "request changed the training at step 50: lr_scale → 0.5"
    yield (
        live_run(root, "nan", curves={"train_loss": lambda step: np.nan if step > 80 else loss(step)}),
        "critical",
    )
    yield live_run(root, "no loss", curves={"train_loss": lambda _: np.nan}), "critical"


def test_what_cannot_be_forecast_says_why(tmp_path):
    for folder, why in refusals(tmp_path):
        found = forecast_of(folder)

        assert isinstance(found.train, NoForecast), folder
        assert why in found.train.why
        assert found.train.why.endswith(".")


def test_a_metric_can_be_named_if_it_is_a_loss(tmp_path):
    folder = live_run(tmp_path, curves={"loss_b": loss, "accuracy": lambda step: step / DONE})

    assert forecast_of(folder, metric="loss_b").train.metric == "loss_b"
    for name in ("accuracy", "lr"):
        assert f"{name} is not the name of a loss" in forecast_of(folder, metric=name).train.why
    assert "no such_metric" in forecast_of(folder, metric="such_metric").train.why


def test_a_validation_loss_has_one_interval_however_it_is_asked_for(tmp_path):
    folder = live_run(tmp_path, curves={"val_loss": loss})
    found, named = forecast_of(folder), forecast_of(folder, metric="val_loss").train

    assert (named.low, named.middle, named.high) == (found.val.low, found.val.middle, found.val.high)
    assert named.high - named.low > found.train.high - found.train.low


def test_of_a_long_run_the_median_is_forecast_and_not_the_mean(tmp_path):
    long, noise = 12_000, np.exp(np.random.default_rng(0).normal(size=12_001))
    curves = {"train_loss": lambda step: 2 + 4 * step**-0.3 + 0.1 * noise[step]}
    folder = live_run(tmp_path, done=long, curves=curves, summary={"max_steps": 2 * long})
    store = LocalStore([tmp_path], cache_dir=None)
    store.refresh(folder.name, wait_s=60)
    found = forecast_run(store, folder.name).train

    assert found.low < 2 + 4 * (2 * long) ** -0.3 + 0.1 < found.high
    assert found.records == long


def test_a_run_is_compared_with_no_run_that_may_train_something_else(tmp_path):
    curves = {"train_loss": lambda step: 0.01 + 1 / (step + 1)}
    for name, project in (("tiny_neon_lora", None), ("other", "b")):
        write_run(tmp_path, name, curves=curves, project=project)

    assert forecast_of(live_run(tmp_path)).passing is None
    assert forecast_of(live_run(tmp_path, "mine", project="a")).passing is None
    found = forecast_of(live_run(tmp_path, "theirs", project="b"))
    assert found.passing.run == "other"
    assert said_of(found, 0.0)[-1].text.endswith("less than 2 % likely")


def test_the_best_run_of_the_same_project_is_compared_with(tmp_path):
    for name, level, project in (("good", 0.4, "a"), ("better", 0.1, "b"), ("bad", 3.0, "a")):
        curves = {"val_loss": lambda step, level=level: level + 2.0 * (step + 1) ** -0.5}
        write_run(tmp_path, name, curves=curves, project=project)
    found = forecast_of(live_run(tmp_path, curves={"val_loss": loss}, project="a")).passing

    assert (found.run, found.metric) == ("good", "val_loss")
    assert found.value == pytest.approx(0.4 + 2.0 * 100**-0.5)
    assert 0.0 < found.chance < 1.0


def test_memory_that_fills_is_said_and_memory_that_does_not_is_not(tmp_path):
    steady = {
        "gpu/0/mem_total_gb": lambda _: 24.0,
        "ram_used_mb": lambda _: 10.0,
        "ram_percent": lambda _: 10.0,
    }
    grows = live_run(
        tmp_path,
        done=400,
        summary={"max_steps": 2000},
        curves=steady | {"gpu/0/mem_used_gb": lambda step: 4 + step / 50},
    )
    flat = live_run(
        tmp_path, "flat", done=400, curves=steady | {"gpu/0/mem_used_gb": lambda step: 4 + step % 3}
    )

    (limit,) = forecast_of(grows).limits
    assert limit.what == "GPU memory"
    assert 900 < limit.step < 1100
    assert forecast_of(flat).limits == ()


def test_a_disk_that_fills_is_seen_in_samples_that_have_no_step(tmp_path):
    folder = live_run(tmp_path, summary={"max_steps": 2000})
    began = time.time() + AHEAD_S - DONE * SECONDS_A_STEP
    samples = [
        {"event": "system", "session": 1, "time": began + at * 0.25, "disk_free_gb": 8 - at / 50}
        for at in range(200)
    ]
    append(folder, samples)

    assert [limit.what for limit in forecast_of(folder).limits] == ["disk"]


def test_the_time_limit_of_a_job_is_said_if_it_comes_before_the_end(tmp_path):
    found = {}
    # So many steps that the machine may pause for minutes between the two looks at the clock.
    for name, seconds in (("short", 400.0), ("long", 3600.0)):
        job_end = {"job_end_time": time.time() + AHEAD_S + seconds}
        folder = live_run(tmp_path, name, start=job_end, summary={"max_steps": 2000})
        found[name] = [limit.what for limit in forecast_of(folder).limits]

    assert found == {"short": ["time limit"], "long": []}


def test_what_may_come_after_the_end_is_not_said_to_come_before():
    ends = ExpectedTime(low=100.0, middle=200.0, high=300.0)
    early, late = (
        ExpectedTime(low=10.0, middle=20.0, high=30.0),
        ExpectedTime(low=150.0, middle=150.0, high=150.0),
    )
    limits = (Limit(what="disk", when=early, step=None), Limit(what="time limit", when=late, step=5.0))
    said = said_of(RunForecast(train=NoForecast("x"), ends=ends, limits=limits), 0.0)

    assert [line.what for line in said[2:]] == ["Disk full", "Time limit may come first"]


def test_the_end_counts_pauses_and_is_wider_where_the_pace_varies():
    steps = np.arange(1.0, 201.0)
    even = np.cumsum(np.full(200, 2.0))
    paused = even + 60.0 * (steps // 20)
    once = even + 600.0 * (steps > 150)
    ends = [end_of(steps, times, 400) for times in (even, paused, once)]

    assert ends[0].middle == pytest.approx(even[-1] + 400.0)
    assert ends[1].low < paused[-1] + 1000.0 < ends[1].high
    assert ends[2].low < once[-1] + 400.0 < ends[2].high
    assert ends[2].high - ends[2].low > ends[0].high - ends[0].low
    assert end_of(steps[:3], even[:3], 400) is None
    assert end_of(steps, even, 200) is None
    assert end_of(steps, even[::-1], 400) is None
    assert end_of(steps, even, 400, now=even[-1] + 1000.0).low > even[-1] + 1000.0


def test_a_pace_that_has_changed_for_good_is_the_one_that_counts():
    steps = np.arange(1.0, 201.0)
    times = np.cumsum(np.where(steps > 170, 5.0, 1.0))

    assert end_of(steps, times, 300).middle == pytest.approx(times[-1] + 500.0)


def test_a_trend_must_be_beyond_noise_and_must_not_level_off():
    times = np.arange(600.0)
    noise = np.random.default_rng(0).normal(0.0, 0.05, 600)
    full = full_at(times, 10.0 + times / 100 + noise, 20.0)

    assert full.low < 1000.0 < full.high
    assert full_at(times, 10.0 + noise, 20.0) is None
    assert full_at(times, 10.0 + np.cumsum(noise), 40.0) is None
    assert full_at(times, 13.0 - 3.0 * np.exp(-times / 150) + noise, 20.0) is None
    assert full_at(times[:100], 10.0 + times[:100], 200.0) is None


def test_the_command_prints_every_forecast_and_its_reason(tmp_path, capsys):
    job_end = {"job_end_time": time.time() + AHEAD_S + 200.0}
    folder = live_run(
        tmp_path, curves={"val_loss": loss}, start=job_end, summary={"max_steps": 900, "train_loss": 0.5}
    )

    assert main(["forecast", str(folder)]) == 1
    said = capsys.readouterr().out
    for words in ("Final loss ", "Final validation loss", "90 %", "Ends ", "Time limit comes first"):
        assert words in said
    assert main(["forecast", str(folder), "--json", "--metric", "val_loss"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["losses"]
    assert one["metric"] == "val_loss"
    assert one["low"] <= one["middle"] <= one["high"]
    assert main(["forecast", str(live_run(tmp_path, "few", done=3))]) == 3
    assert "cannot be forecast  train_loss has 3 records" in capsys.readouterr().out
    assert main(["forecast", str(tmp_path / "none")]) == 2


def test_the_planned_steps_of_another_tools_run_are_in_its_settings(tmp_path, capsys):
    history = [{"step": step, "loss": loss(step)} for step in range(1, DONE + 1)]
    for name, planned in (("known", PLANNED), ("unknown", -1)):
        (tmp_path / name).mkdir()
        state = {"global_step": DONE, "max_steps": planned, "log_history": history, "train_batch_size": 8}
        (tmp_path / name / "trainer_state.json").write_text(json.dumps(state))

    assert main(["forecast", str(tmp_path / "known"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["losses"][0]["at_step"] == PLANNED
    assert main(["forecast", str(tmp_path / "unknown"), "--metric", "loss"]) == 3
    assert "Final loss  cannot be forecast  The run does not say" in capsys.readouterr().out


def test_a_finished_run_has_no_end_to_come(tmp_path, capsys):
    found = forecast_of(live_run(tmp_path, status="stopped"))

    assert found.ends is None
    assert [line.what for line in said_of(found, 0.0)] == ["Final loss"]
    assert main(["forecast", str(tmp_path / "live")]) == 0
    assert capsys.readouterr().out.startswith(f"forecast, had it run to step {PLANNED}")
