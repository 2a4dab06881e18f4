"""Formulas as columns, orders and searches of a list of runs."""

from __future__ import annotations

import pytest

from toolkit.telemetry.runfolder.manifest import Evaluation
from toolkit.telemetry.runfolder.status import Status
from toolkit.telemetry.runs.listing.run_table import formula_column, formula_problem
from toolkit.telemetry.runs.listing.search import QueryError, select_runs, sort_cards
from toolkit.telemetry.runs.store import RunCard, RunQuery


def card(key, val=None, **changes):
    evaluations = {"train_loss": Evaluation(last=1.0, best=0.5, direction="min")}
    if val is not None:
        evaluations["val_loss"] = Evaluation(last=2 * val, best=val, direction="min")
    known = {"step": 100, "duration_s": 50.0, "config": {"learning_rate": 1e-3, "train.rank": "8"}, **changes}
    status = Status(name="finished", why="", sure=True)
    return RunCard(key=key, place=key, name=key, status=status, evaluations=evaluations, **known)


RUNS = [card("a", 0.4), card("b", 0.2), card("c"), card("d", 0.6)]


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
