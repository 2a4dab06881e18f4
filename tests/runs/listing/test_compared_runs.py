"""Metrics under any of their names, groups of runs, and a line with a band for each group."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.runs.listing.test_run_table import card
from toolkit.telemetry.diagnostics.metric_aliases import metric_key
from toolkit.telemetry.runs.columns.group_curve import group_curve
from toolkit.telemetry.runs.listing.compared_runs import (
    ALL_BUT_SEED,
    BY_TAG,
    group_choices,
    grouped,
    joined_metrics,
)
from toolkit.telemetry.runs.settings import setting_names, setting_text
from toolkit.telemetry.runs.store import MetricInfo


def infos(**counts):
    return [
        MetricInfo(
            name=name.replace("__", "/"),
            event="step",
            count=number,
            last=0,
            last_step=0,
            low=0,
            high=0,
            non_finite=0,
        )
        for name, number in counts.items()
    ]


def test_names_of_one_quantity_have_one_key_and_others_do_not():
    assert {metric_key(name) for name in ("val_loss", "val/loss", "eval_loss", "validation_loss")} == {
        "val_loss"
    }
    assert {metric_key(name) for name in ("train/loss", "loss", "Loss")} == {"train_loss"}
    assert metric_key("val/Accuracy") == metric_key("val_accuracy") == "val_accuracy"
    assert metric_key("samples_per_sec") != metric_key("tokens_per_sec")
    assert metric_key("///")


def test_metrics_are_joined_under_the_name_that_most_runs_give_them():
    found = joined_metrics(
        {
            "a": infos(val__loss=3, loss=9, train_loss=20, x=1),
            "b": infos(val_loss=3, train__loss=2),
            "c": infos(val_loss=3, train__loss=2),
        }
    )

    assert found == {
        "val_loss": {"a": "val/loss", "b": "val_loss", "c": "val_loss"},
        "train/loss": {"a": "train_loss", "b": "train/loss", "c": "train/loss"},
        "x": {"a": "x"},
    }


CARDS = [
    card(f"r{number}", config={"learning_rate": rate, "lora_rank": rank, "seed": number}, tags=tags)
    for number, (rate, rank, tags) in enumerate(
        [(1e-4, 16, ("a",)), ("1e-4", 16, ("a", "b")), (1e-3, 8, ()), (1e-3, 16, ()), (1.0001e-3, 16, ())]
    )
]


def test_runs_are_grouped_by_several_settings_by_all_but_the_seed_and_by_tag():
    assert group_choices(CARDS) == [ALL_BUT_SEED, BY_TAG, "learning_rate", "lora_rank", "seed"]
    assert {group.label: group.runs for group in grouped(CARDS, ["lora_rank"])} == {
        "8": ("r2",),
        "16": ("r0", "r1", "r3", "r4"),
    }
    found = {group.label: group.runs for group in grouped(CARDS, [ALL_BUT_SEED])}
    assert list(found.values()) == [("r0", "r1"), ("r2",), ("r3",), ("r4",)], "in the order of the numbers"
    assert len(found) == 4, "no two labels are equal, though two rates read the same"
    assert next(iter(found)) == "learning_rate 1e-4, lora_rank 16"
    assert {group.label: len(group.runs) for group in grouped(CARDS, [BY_TAG])} == {
        "a": 2,
        "b": 1,
        "no tag": 3,
    }


def test_runs_that_differ_in_nothing_are_one_group():
    assert [group.label for group in grouped([card("a"), card("b")], [ALL_BUT_SEED])] == ["all runs"]
    assert group_choices([card("a"), card("b")]) == []


def test_a_setting_has_one_name_and_one_text():
    assert setting_names(
        ["learning_rate", "trainer.optimizer.settings.eps", "model.optimizer.settings.eps", "a.b"]
    ) == {
        "learning_rate": "learning_rate",
        "trainer.optimizer.settings.eps": "trainer.optimizer.settings.eps",
        "model.optimizer.settings.eps": "model.optimizer.settings.eps",
        "a.b": "a.b",
    }
    assert setting_names(["a.very.long.name.of.a.setting"]) == {"a.very.long.name.of.a.setting": "setting"}
    for value, text in (
        (0.0001, "1e-4"),
        (0.1234567, "0.1234567"),
        (1.2345e-7, "1.2345e-7"),
        (True, "true"),
        (3, "3"),
    ):
        assert setting_text(value, exact=True) == text


X = np.arange(5.0)


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [
        ("mean", (3.0, 3.0 - 2.0, 3.0 + 2.0)),
        ("median", (3.0, 2.0, 4.0)),
        ("range", (3.0, 1.0, 5.0)),
    ],
)
def test_a_group_has_a_line_and_a_band(statistic, expected):
    found = group_curve([(X, np.full(5, level)) for level in (1.0, 3.0, 5.0)], statistic)

    assert (found.y[0], found.low[0], found.high[0]) == pytest.approx(expected)


def test_each_run_counts_where_it_has_values_and_differences_are_where_the_base_is():
    short = (X[:3], np.array([1.0, math.nan, 1.0]))
    found = group_curve([short, (X, np.full(5, 3.0))])
    base = group_curve([(X[1:], np.full(4, 1.0))])

    assert found.y[0] == 2.0
    assert found.y[-1] == 3.0
    assert list(base.y) == [1.0] * 4, "a single run stays as it is"
    assert found.minus(base).x[0] >= 1.0
    assert found.minus(base).y[-1] == 2.0
    assert not len(found.minus(group_curve([])).x)
    assert not len(group_curve([(np.empty(0), np.empty(0))]).x)
