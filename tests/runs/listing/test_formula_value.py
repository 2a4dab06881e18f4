"""Formulas as columns, orders and searches of a list of runs."""

from __future__ import annotations

import pytest

from toolkit.telemetry.runfolder.manifest import Evaluation
from toolkit.telemetry.runfolder.status import Status
from toolkit.telemetry.runs.listing.run_table import cell, formula_column, formula_problem
from toolkit.telemetry.runs.listing.search import QueryError, select_runs, sort_cards, value_of
from toolkit.telemetry.runs.store import RunCard, RunQuery


def card(key, val=None, **changes):
    evaluations = {"train_loss": Evaluation(last=1.0, best=0.5, direction="min")}
    if val is not None:
        evaluations["val_loss"] = Evaluation(last=2 * val, best=val, direction="min")
    known = {"step": 100, "duration_s": 50.0, "config": {"learning_rate": 1e-3, "train.rank": "8"}, **changes}
    status = Status(name="finished", why="", sure=True)
    return RunCard(key=key, place=key, name=key, status=status, evaluations=evaluations, **known)


RUNS = [card("a", 0.4), card("b", 0.2), card("c"), card("d", 0.6)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("= best(val_loss) - best(train_loss)", -0.1),
        ("= val_loss / last(train_loss)", 0.8),
        ("= min(val_loss)", 0.4),
        ("= max(val_loss)", None),
        ("= duration / step", 0.5),
        ("= elapsed", 50.0),
        ("= config.lr * config.rank * 1000", 8.0),
        ("= best(val_loss) < 0.5 and step > 10", 1.0),
        ("= missing + 1", None),
    ],
)
def test_a_formula_has_a_value_for_each_run(text, expected):
    assert value_of(RUNS[0], text) == (None if expected is None else pytest.approx(expected))


def test_runs_are_sorted_and_found_by_a_formula():
    order = "= best(val_loss) - best(train_loss)"

    assert [run.key for run in sort_cards(RUNS, order)] == ["b", "a", "d", "c"]
    assert [run.key for run in sort_cards(RUNS, f"-{order}")] == ["d", "a", "b", "c"]
    found = select_runs(RUNS, RunQuery(text="= best(val_loss) < 0.5", sort="name"), 0.0)
    assert [run.key for run in found] == ["a", "b"]


def test_a_formula_is_a_column_of_numbers():
    column = formula_column("= best(val_loss) * 2")

    assert (column.label, column.kind, column.sorts) == (
        *("best(val_loss) * 2", "number"),
        ("= best(val_loss) * 2", "-= best(val_loss) * 2"),
    )
    assert [cell(run, column.id, 0.0) for run in RUNS] == ["0.8", "0.4", "", "1.2"]


def test_what_a_list_cannot_compute_is_said():
    assert formula_column("= ema(val_loss, 0.9)") is None
    assert formula_problem("= ema(val_loss, 0.9)", RUNS).startswith("The table of runs cannot use ema() here")
    assert (
        formula_problem("= min(val_los)", RUNS)
        == "There is no metric 'val_los' (character 7); did you mean val_loss?"
    )
    with pytest.raises(QueryError, match="did you mean val_loss"):
        select_runs(RUNS, RunQuery(text="= val_los < 1"), 0.0)
    with pytest.raises(ValueError, match="did you mean val_loss"):
        sort_cards(RUNS, "= val_los")
