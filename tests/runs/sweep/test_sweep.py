from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluations import sweep as made_sweeps
from toolkit.telemetry.runfolder.manifest import Evaluation
from toolkit.telemetry.runfolder.status import Status
from toolkit.telemetry.runs.store import RunCard
from toolkit.telemetry.runs.sweep.answer import answer
from toolkit.telemetry.runs.sweep.runs import SweepRun, sweep_runs
from toolkit.telemetry.runs.sweep.text import answer_text, beyond_chance


def runs_of(rows, *, state="done"):
    return [
        SweepRun(key=f"k{place}", name=f"run {place}", config=config, value=value, state=state)
        for place, (config, value) in enumerate(rows)
    ]


def text_of(found):
    return str(answer_text(found))


def random_runs(number=24, seed=0, **more):
    """Return runs in which a higher rank is better, and two other settings do nothing."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(number):
        rank = int(rng.choice([4, 16, 64]))
        config = {
            "rank": rank,
            "rate": float(10 ** rng.uniform(-4, -2)),
            "ema": bool(rng.random() < 0.5),
            **more,
        }
        rows.append((config, 0.2 - 0.01 * math.log2(rank) + 0.002 * rng.normal()))
    return runs_of(rows)


# ---------------------------------------------------------------- a known truth


@pytest.mark.parametrize("shape", made_sweeps.SHAPES, ids=lambda shape: shape.title)
def test_the_setting_that_matters_is_named_first(shape):
    found = answer(made_sweeps.made_sweep(shape, 0), metric="val_loss")

    assert made_sweeps.first_named(found) in shape.truth


@pytest.mark.parametrize("shape", made_sweeps.NOISE[:3], ids=lambda shape: shape.title)
def test_noise_is_called_undecided(shape):
    found = [answer(made_sweeps.made_sweep(shape, number), metric="val_loss") for number in range(10, 12)]

    assert [one.verdict for one in found] == ["undecided"] * 2
    assert "Undecided" in text_of(found[0])


@pytest.mark.parametrize("number", [0, 1])
def test_the_best_rate_that_falls_with_the_rank_is_said(number):
    found = answer(made_sweeps.made_sweep(made_sweeps.REVIEW, number), metric="val_loss")

    assert found.named[0].keys[0] == "learning_rate"
    assert found.interaction is not None
    assert (found.interaction.keys, found.interaction.moves) == (("learning_rate", "lora_rank"), "lower")
    assert "Use a lower learning_rate for a higher lora_rank: about " in text_of(found)
    # What is best at one rank is not advised for all.
    assert {one.kind for one in found.suggestions} <= {"between", "repeat"}


def test_the_best_number_with_each_value_of_a_category_is_said():
    rng = np.random.default_rng(0)
    rows = []
    for place in range(32):
        rate, kind = 10.0 ** -(2 + place % 4), ("adamw", "lion")[place // 4 % 2]
        apart = -math.log10(rate) - (3 if kind == "adamw" else 4)
        config = {"rate": rate, "optimizer": kind, "drop": float(rng.random())}
        rows.append((config, 0.1 + 0.02 * apart**2 + 0.002 * rng.normal()))
    found = answer(runs_of(rows), metric="val_loss")

    assert found.interaction is not None
    assert dict(found.interaction.best) == {"adamw": "0.001", "lion": "1e-4"}
    assert "The best rate depends on optimizer: about 0.001 with adamw and 1e-4 with lion." in text_of(found)


def test_two_settings_that_matter_only_together_are_found():
    found = answer(made_sweeps.made_sweep(made_sweeps.HARD[1], 3), metric="val_loss")

    assert found.joint is not None
    assert set(found.joint.keys) == {"learning_rate", "use_ema"}
    assert "neither is beyond chance on its own" in text_of(found)
    assert "also matter" not in text_of(found)
    third = replace(found.factors[-1], keys=("batch_size",), named=True, share=0.15, best="4")
    more = text_of(replace(found, factors=(*found.factors[:-1], third)))
    assert "batch_size (15 %, best 4) also matters." in more
    assert beyond_chance(found, "Blue") == "Blue bars are beyond chance, the first two only together."


# ---------------------------------------------------------------- what it says


def test_the_best_run_the_next_and_the_reason_are_in_the_text():
    runs = random_runs()
    found = answer(runs, metric="val_loss")
    text = text_of(found)

    best, second = sorted(runs, key=lambda run: run.value)[:2]
    assert (found.best, found.second) == (best, second)
    assert text.startswith(f"Best of 24 runs: {best.name}, with val_loss ")
    assert f"The next, {second.name}, is " in text
    assert "rank explains the most" in text
    assert "Try next: rank above 64, because the best runs are at the edge of what was tried" in text


def test_settings_that_were_always_changed_together_are_one():
    runs = [
        replace(
            run, config={**run.config, "alpha": 2 * run.config["rank"], "variant": f"r{run.config['rank']}"}
        )
        for run in random_runs()
    ]
    found = answer(runs, metric="val_loss")

    assert found.named[0].keys == ("rank", "alpha", "variant")
    assert "rank, alpha and variant explain the most" in text_of(found)
    assert "These were always changed together" in text_of(found)


def test_a_setting_that_mostly_follows_another_is_not_named():
    runs = [
        replace(run, config={**run.config, "alpha": run.config["rank"] if place % 8 else 16})
        for place, run in enumerate(random_runs(40))
    ]
    found = answer(runs, metric="val_loss")

    assert [factor.keys for factor in found.named] == [("rank",)]
    assert next(factor for factor in found.factors if factor.keys == ("alpha",)).like == "rank"


def test_seeds_tell_how_much_is_luck():
    rows = [
        ({"rank": 4 * 2**place, "seed": seed}, 0.1 - 0.001 * place + 0.01 * seed)
        for place in range(5)
        for seed in (1, 2)
    ]
    found = answer(runs_of(rows), metric="val_loss")

    assert found.configurations == 5
    assert found.seeds.runs == 10
    assert found.seeds.deviation == pytest.approx(0.01 / math.sqrt(2))
    assert found.lead_is_noise
    assert (
        "The seed alone moves val_loss by about ±0.007071 (10 runs in 5 groups of equal settings)"
        in text_of(found)
    )
    assert "may be luck" in text_of(found)


def test_repeats_of_few_settings_are_judged_against_the_seeds():
    rng = np.random.default_rng(0)
    rows = [
        ({"rate": rate, "seed": seed}, value + 0.001 * rng.normal())
        for rate, value in ((1e-4, 0.2), (1e-3, 0.1))
        for seed in range(5)
    ]
    found = answer(runs_of(rows), metric="val_loss")

    assert found.verdict == "decided"
    assert found.named[0].keys == ("rate",)
    # The next best is of the other setting: that another seed is near says nothing about a setting.
    assert found.best.config["rate"] != found.second.config["rate"]
    assert not found.lead_is_noise
    assert found.groups_differ


def test_repeats_are_no_independent_evidence():
    rng = np.random.default_rng(3)
    configs = [
        {"rate": float(rng.random()), "rank": int(rng.choice([4, 16])), "drop": float(rng.random())}
        for _ in range(9)
    ]
    rows = [
        ({**config, "seed": seed}, level + 1e-4 * rng.normal())
        for config, level in zip(configs, rng.normal(size=9), strict=True)
        for seed in range(6)
    ]

    found = answer(runs_of(rows), metric="val_loss")
    text = text_of(found)

    assert found.verdict == "undecided"
    # That the settings matter is sure all the same: what is not is which of them.
    assert "The settings matter: the mean val_loss of equal settings goes from" in text
    assert "Which of them does it is undecided: with 9 different settings in 54 runs" in text
    assert "change one setting at a time" in text
    assert "no larger than chance" not in text


def test_repeats_that_differ_no_more_than_seeds_do_say_nothing_about_settings():
    rng = np.random.default_rng(4)
    rows = [
        ({"rate": rate, "rank": rank, "seed": seed}, 0.1 + 0.01 * rng.normal())
        for rate in (1e-4, 3e-4, 1e-3, 3e-3)
        for rank in (4, 16)
        for seed in range(3)
    ]
    found = answer(runs_of(rows), metric="val_loss")

    assert (found.verdict, found.groups_differ) == ("undecided", False)
    assert "no larger than chance alone" in text_of(found)


def test_an_optimum_inside_is_named_with_its_interval_and_proposed():
    rng = np.random.default_rng(2)
    rows = []
    for place in range(24):
        rate = 10 ** rng.uniform(-5, -1)
        rows.append(({"rate": rate, "seed": place}, (math.log10(rate) + 3.2) ** 2 + 0.05 * rng.normal()))
    found = answer(runs_of(rows), metric="val_loss")
    [best, low, high] = map(float, found.named[0].optimum)
    text = text_of(found)

    assert low <= best <= high
    assert 10**-3.6 < best < 10**-2.8
    assert "The best rate is about" in text
    assert "rate about" in text.partition("Try next")[2]
    assert "median" not in text


def test_an_effect_that_ends_at_an_edge_has_no_optimum_inside():
    rows = [({"rate": 10.0**-place}, 1.0 - 0.1 * place + 0.001 * (place % 3)) for place in range(9)]
    found = answer(runs_of(rows), metric="val_loss")

    assert found.named[0].optimum is None


def test_runs_that_do_not_count_are_counted():
    runs = random_runs()
    others = [
        SweepRun(key="a", name="slow", config={"rank": 64}, value=0.01, state="running"),
        SweepRun(key="b", name="crashed", config={"rank": 4}, value=None, state="failed"),
        SweepRun(key="c", name="nan", config={"rank": 4}, value=math.nan),
        SweepRun(key="d", name="inf", config={"rank": 4}, value=math.inf),
    ]
    found = answer([*others, *runs], metric="val_loss")
    text = text_of(found)

    assert (found.total, found.counted) == (28, 24)
    assert (found.running, found.failed, found.without_value) == (("slow",), ("crashed",), ("nan", "inf"))
    assert "Not counted: 1 still running, 1 failed and 2 without a finite value." in text
    assert "slow is still running but has reached 0.01, better than any finished run." in text


def test_a_setting_that_makes_runs_fail_is_named():
    runs = [
        replace(run, state="failed", value=None) if run.config["rate"] > 3e-3 else run
        for run in random_runs(40)
    ]
    found = answer(runs, metric="val_loss")

    assert found.failures.key == "rate"
    assert "Failures depend on rate: " in text_of(found)


def test_a_run_that_never_logged_the_metric_has_not_failed():
    others = [
        SweepRun(key=f"o{number}", name=f"other-{number}", config={}, value=None) for number in range(8)
    ]
    found = answer([*others, *random_runs(30)], metric="val_loss")

    assert found.failures is None
    assert "Not counted: 8 without val_loss." in text_of(found)


def test_the_edge_is_no_advice_where_runs_diverge():
    shape = next(shape for shape in made_sweeps.SHAPES if shape.diverges_above)
    found = answer(made_sweeps.made_sweep(shape, 3), metric="val_loss")

    assert found.named[0].keys == ("learning_rate",)
    assert not any(one.kind == "beyond" and not one.below for one in found.suggestions)


def test_the_best_values_that_no_run_combined_are_suggested():
    rows = []
    for place in range(24):
        rank, batch = (64, 4) if place % 3 == 0 else (16, 8) if place % 3 == 1 else (16, 4)
        rows.append(
            (
                {"rank": rank, "batch": batch},
                0.2 - 0.01 * (rank == 64) - 0.006 * (batch == 8) + 1e-5 * (place % 7),
            )
        )
    found = answer(runs_of(rows), metric="val_loss")

    combined = next(one for one in found.suggestions if one.kind == "combine")
    assert dict(combined.settings) == {"rank": "64", "batch": "8"}
    assert "rank 64 and batch 8 together, which no run has tried" in text_of(found)


# ---------------------------------------------------------------- sweeps without an answer


@pytest.mark.parametrize(
    ("rows", "verdict", "said"),
    [
        ([], "no runs", "There are no runs."),
        ([({"a": 1}, None)], "no runs", "The run does not have a final loss yet."),
        ([({"a": 1}, 0.5)], "too few runs", "The only run with a final loss is run 0: 0.5."),
        ([({"a": place}, place) for place in range(5)], "too few runs", "too few to say why"),
        ([({"a": 1}, place) for place in range(9)], "nothing varied", "have the same settings"),
        ([({}, place) for place in range(9)], "nothing varied", "have no recorded settings"),
        ([({"a": place % 3}, 0.5) for place in range(9)], "all equal", "All runs have the same loss."),
    ],
)
def test_every_state_has_a_sentence(rows, verdict, said):
    found = answer(runs_of(rows), metric="loss")

    assert found.verdict == verdict
    assert said in text_of(found)


def test_names_seeds_and_texts_that_every_run_has_of_its_own_are_not_tested():
    runs = [
        replace(
            run,
            config={**run.config, "name": run.name, "seed": place, "prompt": f"p{place}", "model": "tiny"},
        )
        for place, run in enumerate(random_runs())
    ]
    found = answer(runs, metric="val_loss")

    assert {key for factor in found.factors for key in factor.keys} == {"rank", "rate", "ema"}
    assert found.left_out == ("prompt",)
    assert found.constant == ("model",)


def test_missing_values_and_numbers_as_text_are_understood():
    runs = []
    for place, run in enumerate(random_runs()):
        config = {**run.config, "rank": str(run.config["rank"])}
        if place % 2:
            config.update(drop=0.1, clip=1 + place % 3)
        if place < 3:
            del config["rank"]
        runs.append(replace(run, config=config))
    found = answer(runs, metric="val_loss")

    by_key = {factor.keys[0]: factor for factor in found.factors}
    assert found.named[0].keys == ("rank",)
    assert "rank is recorded in 21 of 24 runs." in text_of(found)
    # Recorded by some runs, with one value: that is no difference.
    assert (found.partly, "drop" in by_key, "drop" in found.varied) == (("drop",), False, False)
    assert (by_key["clip"].runs, [level.label for level in by_key["clip"].levels]) == (12, ["1", "2", "3"])


def card(name, status, *, step=600, max_steps=600, value=0.1, project=None, config=()):
    return RunCard(
        key=name,
        place=name,
        name=name,
        status=Status(name=status, why="", sure=True),
        step=step,
        max_steps=max_steps,
        project=project,
        config=dict(config),
        evaluations={"val_loss": Evaluation(last=value, best=value)},
    )


def test_a_run_that_was_stopped_early_is_not_a_result():
    cards = [card(f"full-{place}", "finished", value=0.2 + place / 100) for place in range(9)]
    cards += [
        card("early", "stopped", step=60, value=0.1),
        card("almost", "stopped", step=580),
        card("without a plan", "stopped", step=100, max_steps=None),
        # A run that ended by itself did what it was to do.
        card("short", "finished", step=60),
    ]
    runs = sweep_runs(cards, "val_loss", "min")
    found = answer([run for run in runs if run.name != "without a plan"], metric="val_loss")

    assert [run.name for run in runs if run.state == "stopped"] == ["early", "without a plan"]
    assert runs[-2].planned == 600
    assert (found.counted, found.ahead) == (11, None)
    assert "1 run stopped at step 60 of 600 is left out." in text_of(found)
    assert "2 runs stopped at 10 to 17 % of their steps are left out." in text_of(
        answer(runs, metric="val_loss")
    )


_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(["", "adamw", "1e-4", "nan", "\ud800"]),
    st.lists(st.integers(), max_size=2),
)
_rows = st.tuples(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), _values), st.one_of(st.none(), st.floats())
)


@settings(max_examples=25, deadline=None)
@given(st.lists(_rows, max_size=12), st.sampled_from(["min", "max"]))
def test_any_settings_and_values_have_an_answer(rows, direction):
    found = answer(runs_of(rows), metric="loss", direction=direction)

    assert text_of(found)
    assert found.counted + len(found.without_value) + len(found.not_logged) == len(rows)
    for factor in found.factors:
        assert 0.0 <= factor.low <= factor.share <= factor.high <= 1.0
        assert 0.0 < factor.p <= 1.0
