"""Metrics under any of their names, groups of runs, and a line with a band for each group."""

from __future__ import annotations

import math

import numpy as np
import pytest

from toolkit.telemetry.runs.columns.group_curve import group_curve
from toolkit.telemetry.runs.settings import setting_names, setting_text


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
