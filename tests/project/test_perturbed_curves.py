from __future__ import annotations

import math

from benchmarks.diagnose_eval import perturbed
from benchmarks.diagnose_eval.perturbed import CHANGES


def _rows(count=120):
    losses = [3.0 + 0.05 * math.sin(7.0 * step) - 0.01 * step for step in range(count)]
    losses[60:70] = [9.0] * 10
    return [
        {"event": "step", "global_step": 10 * step, "train_loss": loss, "lr": 1e-3}
        for step, loss in enumerate(losses)
    ]


LABEL = {"kind": "spike", "certainty": "sure", "start_step": 600, "end_step": 690}


def test_a_finding_has_the_steps_of_the_unchanged_curve_whatever_its_steps_count():
    found = perturbed._findings(_rows(), [LABEL])
    before = [prediction["start_step"] for prediction in found["rounded to 3 digits"][0]]
    after = [prediction["start_step"] for prediction in found["steps counted in samples"][1]]

    assert before == after == [600]


def test_a_label_counts_only_where_the_records_still_hold_it():
    found = perturbed._findings(_rows(), [LABEL])

    assert found["every 2nd record"][2] == [LABEL]
    assert found["without `train_loss`"][2] == []
    assert found["without `train_loss`"][0] == [], "nor does a finding in a metric that is missing"
    assert "every 5th record" not in found, "too few records are left"
    assert "without `grad_norm`" not in found, "it was not there"


def test_a_change_leaves_the_number_of_records_and_every_evaluation():
    rows = [*_rows(), {"event": "eval", "global_step": 1190, "val_loss": 2.5}]

    for name, change in CHANGES.items():
        changed = change(rows)
        assert changed[-1]["event"] == "eval", name
        assert len(changed) == len(rows) or name in perturbed._THINNED
    assert [row["train_loss"] for row in CHANGES["means of 5 records"](rows)[:-1]][12] == 9.0
    assert CHANGES["half of its own noise added"](rows) == CHANGES["half of its own noise added"](rows)
