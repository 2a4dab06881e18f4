"""The file of the made curves, and the labels that are measured against a twin."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.diagnose_eval.frozen import choose
from benchmarks.diagnose_eval.made import made_split, said_of
from benchmarks.made_curves.file import (
    CURVES,
    SWEEPS,
    MadeFileError,
    MadeRun,
    MadeSweep,
    SweepRun,
    made_runs,
    made_sweeps,
    write_runs,
    write_sweeps,
)
from benchmarks.made_curves.labels import labels_of, seen_without_a_cause
from benchmarks.made_curves.settings import COSINE, SCHEDULES, Settings

ROWS = 200


def curve(*, noise=0.02, seed=1):
    dice = random.Random(seed)
    loss = [1 + 3 * math.exp(-row / 30) + dice.gauss(0, noise) for row in range(ROWS)]
    return {"step": list(range(1, ROWS + 1)), "train_loss": loss, "grad_norm": [1.0] * ROWS}


def sure(labels):
    return [(one["kind"], one["start_step"], one["end_step"]) for one in labels if one["certainty"] == "sure"]


def test_runs_come_back_as_they_were_written(tmp_path):
    settings = Settings(family="mlp", seed=3, steps=40, log_every=10, warm_up=5, bad_steps=(12,))
    columns = {
        "step": [10, 20, 30, 40],
        "train_loss": [1.23456, math.nan, 0.5, 1e-7],
        "lr": [settings.lr_at(step) for step in (10, 20, 30, 40)],
        "eval_step": [20, 40],
        "val_loss": [2.0, 3.0],
    }
    label = {"kind": "nan", "start_step": 20, "end_step": 20, "certainty": "sure", "note": ""}
    about = {"id": "a", "family": "mlp", "cause": "bad_batch", "fault_step": 12, "has_effect": True}
    write_runs(tmp_path / "x.xz", [MadeRun(**about, labels=[label], settings=settings, columns=columns)])

    (run,) = made_runs(tmp_path / "x.xz")

    assert run.settings == settings
    assert run.labelled == {"labels": [label], "clean": False, "no_sure_label": False}
    rows = run.records()
    assert [(row["event"], row["global_step"]) for row in rows] == [
        ("step", 10),
        ("step", 20),
        ("eval", 20),
        ("step", 30),
        ("step", 40),
        ("eval", 40),
    ]
    assert rows[0] == {"event": "step", "global_step": 10, "train_loss": 1.2346, "lr": settings.lr_at(10)}
    assert math.isnan(rows[1]["train_loss"])
    assert rows[-1]["val_loss"] == 3.0


def test_sweeps_come_back_as_they_were_written(tmp_path):
    settings = Settings(family="gpt", seed=3, steps=2, order_seed=7, lr=0.01)
    columns = {"step": [1, 2], "train_loss": [2.0, 1.0], "lr": [0.01, 0.0], "eval_step": [2], "val_loss": [1]}
    run = SweepRun(seed=7, settings=settings, columns=columns)
    write_sweeps(tmp_path / "x.xz", [MadeSweep(id="a", family="gpt", varied=["lr"], runs=[run])])

    (sweep,) = made_sweeps(tmp_path / "x.xz")

    assert sweep.varied == ["lr"]
    assert sweep.runs[0].planned_steps == 2
    assert sweep.runs[0].seed == 7
    assert sweep.runs[0].columns["train_loss"] == [2.0, 1.0]


@pytest.mark.parametrize("content", [None, b"no xz"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "x.xz"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(MadeFileError, match="x.xz"):
        made_runs(path)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_learning_rate_warms_up_and_is_never_negative(schedule):
    settings = Settings(family="mlp", seed=0, steps=100, lr=1.0, schedule=schedule, warm_up=10)
    rates = [settings.lr_at(step) for step in range(1, 101)]

    assert rates[4] == 0.5
    assert rates[9] == 1.0
    assert min(rates) >= 0
    assert max(rates) == 1.0


def test_a_jump_that_is_over_is_a_spike_and_one_that_stays_is_a_divergence():
    twin = curve()
    for last, kind in ((110, "spike"), (ROWS, "divergence")):
        faulty = curve()
        for row in range(99, last):
            faulty["train_loss"][row] *= 3

        found = sure(labels_of(faulty, twin, ("spike", "divergence"), 100))

        assert found == [(kind, 100, last)]


def test_a_run_like_its_twin_has_no_label():
    assert labels_of(curve(), curve(), ("spike", "plateau", "overfit"), 1) == []
    assert seen_without_a_cause(curve(noise=0.2)) == []


def test_a_run_that_stays_where_its_twin_learns_is_on_a_plateau():
    stuck = {**curve(), "train_loss": [4 + random.Random(row).gauss(0, 0.05) for row in range(ROWS)]}

    assert sure(labels_of(stuck, curve(), ("plateau",), 1)) == [("plateau", 1, ROWS)]


def test_a_validation_loss_that_rises_and_a_norm_that_explodes_are_labelled():
    evaluations = list(range(10, ROWS + 1, 10))
    falls = [2 - step / 200 for step in evaluations]
    rises = [2 - step / 200 if step < 80 else 1.2 + step / 200 for step in evaluations]
    twin = {**curve(), "eval_step": evaluations, "val_loss": falls}
    faulty = {**curve(), "eval_step": evaluations, "val_loss": rises}
    faulty["train_loss"] = [
        value * (5 if row == 150 else 1) for row, value in enumerate(faulty["train_loss"])
    ]
    faulty["grad_norm"] = [50.0 if row == 150 else 1.0 for row in range(ROWS)]

    found = sure(labels_of(faulty, twin, ("overfit", "spike", "exploding_grad"), 1))

    assert ("overfit", 80, ROWS) in found or ("overfit", 70, ROWS) in found
    assert ("exploding_grad", 151, 151) in found
    assert ("spike", 151, 151) in found


def test_the_same_cosine_is_used_for_the_file_and_the_training():
    settings = Settings(family="mlp", seed=0, steps=100, lr=1.0, schedule=COSINE, jump_step=50, jump=10.0)

    assert settings.lr_at(49) < 1 < settings.lr_at(50)
    assert Settings.from_mapping(settings.to_mapping()) == settings


def test_the_middle_of_equally_good_thresholds_is_chosen():
    def counts(found, false):
        return {"labels": 10, "found": found, "false": false}

    assert choose({1.0: counts(5, 0), 2.0: counts(9, 0), 3.0: counts(9, 0), 4.0: counts(9, 0)}) == 3.0
    assert choose({1.0: counts(9, 9), 2.0: counts(8, 0)}) == 2.0


def test_made_runs_are_written_in_the_layout_of_the_corpus():
    settings = Settings(family="mlp", seed=0, steps=ROWS)
    about = {"family": "mlp", "cause": "none", "fault_step": None, "has_effect": True, "labels": []}
    run = MadeRun(id="a", **about, settings=settings, columns=curve())

    with made_split([run]) as split:
        assert split.rows("a") == run.records()
        assert split.labels == {"a": {"labels": [], "clean": True, "no_sure_label": True}}
        assert [said["kind"] for said in said_of(split)["a"] if said["severity"] != "info"] == []
    assert not split.folder.exists()


def test_the_kept_curves_are_as_many_as_the_document_says():
    runs = made_runs()

    assert len(runs) >= 600
    assert len({run.id for run in runs}) == len(runs)
    assert sum(run.is_clean for run in runs) >= len(runs) / 3
    assert len({run.family for run in runs}) >= 6
    assert len({run.cause for run in runs}) > 12
    assert CURVES.stat().st_size <= 1_500_000


def test_the_kept_sweeps_have_sixteen_whole_runs_each():
    sweeps = made_sweeps()

    assert len(sweeps) >= 50
    assert len({sweep.family for sweep in sweeps}) >= 5
    for sweep in sweeps:
        assert len(sweep.runs) == 16
        for run in sweep.runs:
            assert run.planned_steps - run.columns["step"][-1] < run.settings.log_every
            assert run.planned_steps - run.columns["eval_step"][-1] < run.settings.eval_every
    assert SWEEPS.stat().st_size <= 1_000_000
