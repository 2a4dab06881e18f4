"""Formulas as curves of a run."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.telemetry.formulas.evaluation import Evaluation
from toolkit.telemetry.formulas.formula import parse
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runs.columns import column_queries, derived
from toolkit.telemetry.runs.columns.run_log import RunLog
from toolkit.telemetry.runs.curve_axes import axes_of
from toolkit.telemetry.runs.curve_tiles import TileQuery
from toolkit.telemetry.runs.store import MetricInfo


def _append(path, *records):
    with path.open("ab") as file:
        for record in records:
            file.write(encode({"event": "step", "time": 1.0, "elapsed": 1.0, "session": 1, **record}) + b"\n")


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "metrics.jsonl"
    steps = ({"global_step": step, "loss": 4.0 / step, "tokens": 10 * step} for step in range(1, 6))
    _append(path, *steps, {"event": "eval", "global_step": 5, "val_loss": 1.6})
    log = RunLog(path, None)
    log.refresh(5.0)
    return log


def test_a_formula_is_a_curve_like_any_metric(log):
    series = log.series("= val_loss / loss", "step", None, 600)

    assert [(segment.x.tolist(), segment.y.tolist()) for segment in series.segments] == [([5.0], [2.0])]
    assert log.recent("= loss * step", 2).tolist() == [4.0, 4.0]
    assert log.means("= loss * 0 + 3", 1).tolist() == [3.0]
    table = log.table(["loss", "= tokens / 10"], (0, 6))
    assert np.ma.getmaskarray(table["= tokens / 10"]).tolist() == [False] * 5 + [True]
    assert table["= tokens / 10"][:5].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [one.name for one in log.metrics()] == ["loss", "tokens", "val_loss"]


def test_a_column_is_extended_and_not_computed_again(log, monkeypatch):
    asked = []
    take = Evaluation.take

    def counted(self, *given):
        asked.append(len((found := take(self, *given))[0]))
        return found

    monkeypatch.setattr(Evaluation, "take", counted)
    first = log.column("= ema(loss, 0.5)")
    _append(log.path, {"global_step": 6, "loss": 7.0})
    log.refresh(5.0)

    assert log.column("= ema(loss, 0.5)") is first
    assert asked == [5, 1]
    assert len(first.values) == 6


def test_a_formula_is_computed_up_to_the_deadline_and_continued_by_the_next_question(log, monkeypatch):
    monkeypatch.setattr(derived, "_AT_ONCE", 2 * parse("loss * 2").cost)
    looks = iter([False, True, False, False, False])
    monkeypatch.setattr(column_queries, "is_over", lambda: next(looks))
    ask = TileQuery(fit=800)

    first, whole = (log.tiles("= loss * 2", "step", ask, (None, False)) for _ in range(2))

    assert (first.computed, first.pieces[0].points, first.problem) == (2 / 6, 2, None)
    assert (whole.computed, whole.pieces[0].points) == (1.0, 5)


def test_a_formula_that_takes_too_many_operations_is_refused_before_it_runs(log, monkeypatch):
    monkeypatch.setattr(derived, "_MOST_OPERATIONS", 60)

    assert log.formula_column("= median(loss, 950) + loss")[1] is None
    assert log.formula_column("= median(loss, 950) + median(loss, 951)") == (
        None,
        "The formula is too large for this run: 13 operations at each of 5 records, where at most 60 are computed.",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("= los / 2", "There is no metric 'los' (character 3); did you mean loss?"),
        ("= loss +", "A name, a number or ( is missing (character 9)."),
        ("= step * 2", "The formula names no metric, so it has a value at no record."),
        ("= loss * config.lr", "The run has no setting 'lr' that is a number (character 10)."),
        ("= delta(val_loss)", "The formula has no value yet: not all of its metrics have been logged."),
    ],
)
def test_a_formula_without_a_curve_says_why(log, text, said):
    assert log.formula_column(text) == (None, said)
    assert log.series(text, "step", None, 600).segments == ()
    assert log.recent(text, 3).tolist() == []


def test_counters_that_rise_come_first_among_the_axes():
    def metric(name, low, high, last):
        return MetricInfo(
            name=name, event="step", count=9, last=last, last_step=9.0, low=low, high=high, non_finite=0
        )

    axes = axes_of(
        [
            metric("loss", 1.0, 4.0, 1.0),
            metric("train/tokens_seen", 0.0, 90.0, 90.0),
            metric("tokens_per_sec", 1.0, 9.0, 9.0),
            metric("time/forward", 0.0, 1.0, 1.0),
        ]
    )

    assert [value for value, _ in axes] == [
        *("step", "time", "elapsed", "epoch", "progress"),
        *("metric:train/tokens_seen", "metric:loss", "metric:tokens_per_sec"),
    ]
