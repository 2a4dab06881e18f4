"""Which live runs of a sweep can be stopped: those far behind, never the best, and what that saves."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.made_runs import SECONDS_A_STEP, append, write_run
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.forecasts import sweep
from toolkit.telemetry.forecasts.curve import Curve, Plan
from toolkit.telemetry.forecasts.stopping import SweptRun, which_to_stop
from toolkit.telemetry.forecasts.sweep import stopping_of, stopping_text
from toolkit.telemetry.runfolder.status import HEARTBEAT_TIMEOUT_S
from toolkit.telemetry.runs.sources.local_store import LocalStore

PLANNED = 1000


def rates(last, peak=1e-3, power=1.0):
    steps = np.arange(10.0, last + 1, 10)
    return Curve(steps, peak * (1 - steps / PLANNED) ** power)


def swept(name, level, *, done=500, noise=0.002, lr=True, **more):
    """Return a live run that falls to `level`, evaluated every 20 steps."""
    steps = np.arange(20.0, done + 1, 20)
    rng = np.random.default_rng(sum(map(ord, name)))
    values = level + 2 * np.exp(-steps / 80) + noise * rng.standard_normal(len(steps))
    plan = Plan(last_step=PLANNED, lr=rates(done) if lr else None)
    return replace(
        SweptRun(key=name, name=name, curve=Curve(steps, values), plan=plan, is_live=True, step=float(done)),
        **more,
    )


def names(runs, **more):
    return [run.name for run in which_to_stop(runs, metric="val_loss", **more).stoppable]


FAR = [swept("best", 1.0), swept("near", 1.02), swept("far", 2.5), swept("farther", 3.5)]


def test_runs_far_behind_at_the_same_step_can_be_stopped():
    found = which_to_stop([replace(run, step_s=2.0, watts=360.0) for run in FAR], metric="val_loss")

    assert [run.name for run in found.stoppable] == ["far", "farther"]
    far = found.stoppable[0]
    assert (far.steps, far.seconds, far.kwh) == (500, 1000, pytest.approx(0.1))
    assert found.risk == 0.02
    assert "at step 500, where best had" in far.why
    kept = {run.name: run.why for run in found.runs if not run.can_stop}
    assert kept["best"] == "It is the best at step 500."
    assert "may still make up" in kept["near"]


def test_of_an_accuracy_the_highest_is_the_best():
    runs = [replace(run, curve=Curve(run.curve.steps, -run.curve.values)) for run in FAR]

    found = which_to_stop(runs, metric="accuracy", direction="max")

    assert [run.name for run in found.stoppable] == ["far", "farther"]
    assert found.stoppable[0].why.startswith("-2.5")


def early(run):
    return replace(run, curve=Curve(run.curve.steps[:5], run.curve.values[:5]), step=100.0)


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([early(run) for run in FAR], "from step 200 on"),
        ([replace(run, plan=Plan(last_step=None)) for run in FAR], "at which step it ends"),
        ([replace(run, doubt="A request changed its training: lr 1.") for run in FAR], "A request changed"),
        ([replace(run, curve=Curve(run.curve.steps[-3:], run.curve.values[-3:])) for run in FAR], "needs 4"),
        (FAR[:1], "Fewer than 3 runs have its plan."),
        ([replace(run, step=1000.0) for run in FAR], "reached its planned end"),
    ],
)
def test_nothing_is_stopped_on_too_little(runs, why):
    found = which_to_stop(runs, metric="val_loss")

    assert found.stoppable == ()
    assert why in found.runs[-1].why


def test_a_run_whose_loss_is_not_a_number_can_be_stopped_while_others_have_one():
    lost = replace(swept("lost", 1.0), is_lost=True, doubt="It was resumed.")

    assert names([lost, *FAR[:2]]) == ["lost"]
    assert names([lost, replace(lost, key="b", name="b")]) == []


def test_a_noisy_metric_stops_fewer():
    noisy = [swept(run.name, level, noise=2.0) for run, level in zip(FAR, (1, 1.02, 2.5, 3.5), strict=True)]

    assert names(noisy) == []


def test_a_higher_learning_rate_that_decays_later_is_given_more():
    def why(peak):
        high = replace(FAR[2], plan=Plan(last_step=PLANNED, lr=rates(500, peak)))
        found = which_to_stop([FAR[0], FAR[1], high], metric="val_loss").runs
        return float(next(run.why for run in found if run.name == "far").split("make up ")[1].rstrip("."))

    assert why(1e-2) > why(1e-3) == why(1e-4)


def test_a_run_whose_schedule_the_others_do_not_have_is_not_judged():
    other = replace(FAR[2], plan=Plan(last_step=PLANNED, lr=rates(500, power=0.3)))
    found = which_to_stop([*FAR[:2], other, FAR[3]], metric="val_loss")

    assert [run.name for run in found.stoppable] == ["farther"]
    assert [run.why for run in found.runs if run.name == "far"] == ["Fewer than 3 runs have its plan."]


def test_a_run_that_has_ended_is_compared_with_where_it_was_at_that_step():
    ended = [
        replace(swept(f"ended {level}", level, done=PLANNED), is_live=False) for level in (1.0, 1.02, 1.1)
    ]

    assert names([*ended, FAR[2]]) == ["far"]


# ---------------------------------------------------------------- from run folders


def write_sweep(root, levels, **more):
    for place, level in enumerate(levels):
        curves = {"train_loss": lambda step, level=level: level + 2 / step, "lr": lambda step: 1e-3}
        if place % 2:
            curves["gpu/0/power_w"] = lambda step: 300.0
        evals = [
            {"event": "eval", "time": 1.7e9, "global_step": step, "val_loss": level + 2 * np.exp(-step / 20)}
            for step in range(10, 101, 10)
        ]
        write_run(
            root,
            f"run-{place}",
            sessions=(range(1, 101),),
            curves=curves,
            start={"config": {"lr_scheduler": "constant"}},
            extra=evals,
            status="running",
            summary={"max_steps": 200, "global_step": 100},
            **more,
        )


def test_the_command_says_what_can_be_stopped_and_what_it_saves(tmp_path, capsys):
    write_sweep(tmp_path, (1.0, 1.01, 1.02, 4.0, 6.0))

    assert main(["forecast", "--stopping", str(tmp_path), "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    runs = {run["name"]: run for run in found["runs"]}
    assert [name for name, run in runs.items() if run["can_stop"]] == ["run-3", "run-4"]
    assert runs["run-3"]["steps"] == 100
    # Its last sign of life may come that much later than its last step.
    assert 0.9 < runs["run-3"]["seconds"] / (100 * SECONDS_A_STEP) < 1.1 + HEARTBEAT_TIMEOUT_S / 50
    assert runs["run-3"]["kwh"] == pytest.approx(runs["run-3"]["seconds"] * 300 / 3.6e6, rel=0.01)
    assert runs["run-4"]["kwh"] is None
    assert "2 of 5 live runs" in found["sentence"]
    assert "(of 1 with recorded power)" in found["sentence"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--risk", "0"], 2, "--risk 0 is out of range: 2 to 50"),
        (["--metric", "shoe_size"], 2, "--goal min or --goal max"),
        (["--project", "other"], 2, "has no runs of other"),
        ([], 3, "None of 2 live runs can be stopped yet."),
    ],
)
def test_the_command_says_why_there_is_nothing(tmp_path, capsys, arguments, code, text):
    write_sweep(tmp_path, (1.0, 4.0))

    assert main(["forecast", "--stopping", str(tmp_path), *arguments]) == code
    assert text in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"event": "control_change", "id": "1", "status": "applied", "knobs": {"lr": 2.0}},
            "A request changed",
        ),
        ({"event": "step", "session": 2, "global_step": 101}, "was resumed"),
    ],
)
def test_what_has_become_another_training_goes_on(tmp_path, change, why):
    write_sweep(tmp_path, (1.0, 1.01, 1.02, 4.0))
    append(tmp_path / "run-3", [{"time": 1.7e9, **change}])
    store = LocalStore([tmp_path], cache_dir=None)

    found = stopping_of(store, store.list_runs().cards, metric="val_loss", direction="min", wait_s=60)

    assert "None of 4 live runs" in stopping_text(found)
    assert why in found.runs[-1].why


def test_live_runs_that_were_too_many_to_be_read_are_named(tmp_path, monkeypatch):
    write_sweep(tmp_path, (1.0, 1.01, 4.0))
    monkeypatch.setattr(sweep, "MOST", 2)
    store = LocalStore([tmp_path], cache_dir=None)

    found = stopping_of(store, store.list_runs().cards, metric="val_loss", direction="min", wait_s=60)

    assert stopping_text(found).endswith("More than 2 are live; not judged: run-2.")


@pytest.mark.parametrize(("bad", "lost"), [(1, False), (5, True)])
def test_one_training_loss_that_is_not_a_number_is_not_enough_to_stop(tmp_path, bad, lost):
    write_sweep(tmp_path, (1.0, 1.01, 1.02))
    steps = [
        {"event": "step", "time": 1.7e9 + 200, "global_step": 101 + at, "train_loss": float("nan")}
        for at in range(bad)
    ]
    append(tmp_path / "run-1", steps)
    store = LocalStore([tmp_path], cache_dir=None)

    found = stopping_of(store, store.list_runs().cards, metric="val_loss", direction="min", wait_s=60)

    assert [run.name for run in found.stoppable] == (["run-1"] if lost else [])
