"""Numbers behind a finding have words and units, and equal alerts are folded into one group."""

from __future__ import annotations

import math

import pytest

from tests.made_runs import finding
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE
from toolkit.telemetry.diagnostics.examiner import examine
from toolkit.telemetry.reports.finding_text import numbers_of, value_of
from toolkit.telemetry.runs.findings.alerts import effect_on_loss, grouped


def alert(kind="spike", step=1, **more):
    return finding(kind, step, **{"state": "resolved", **more})


def test_no_raw_name_of_evidence_is_shown():
    losses = [0.3, *[1.0 + 0.01 * (step % 3) for step in range(60)]]
    records = [{"event": "step", "global_step": step, "train_loss": loss} for step, loss in enumerate(losses)]

    (found,) = examine(records)
    shown = numbers_of(alert(found.kind, evidence=found.evidence))

    assert shown[0] == "first values 0.3"
    assert any(text == "highest 1.02 (at step 3) (3.4 times the level)" for text in shown)
    assert not any("_" in text for text in shown)


@pytest.mark.parametrize(
    ("kind", "evidence", "said"),
    [
        ("data_starvation", {"share_pct": 52}, "52 % of each step waiting for data"),
        ("memory_growth", {"grown_mib": 512.0}, "grown by 537 MB"),
        ("stalled", {"seconds": 372.0}, "6 m 12 s without a step"),
        ("nan", {"last_good": 1.135}, "last finite value 1.135"),
        ("mine", {"my_{odd}_name": 3}, "my {odd} name 3"),
        ("mine", {"text": "<b>"}, "text <b>"),
        ("spike", {"ratio": math.inf}, "(inf times the level)"),
    ],
)
def test_numbers_have_words_and_units(kind, evidence, said):
    assert numbers_of(alert(kind, evidence=evidence)) == [said]


@pytest.mark.parametrize("kind", CATALOGUE)
def test_every_kind_says_what_counts_even_without_evidence(kind):
    assert value_of(alert(kind)) == ""
    assert value_of(alert(kind, count=3)) == "3 records"


def test_groups_are_sorted_by_state_severity_and_effect_on_the_loss():
    slow = [alert("throughput_drop", step) for step in (7_000, 8_000)]
    spike = alert("spike", 100, evidence={"ratio": 8.0})
    overfit = alert("overfit", 200, evidence={"rise_pct": 30.0})
    nan = alert("nan", 50, severity="critical", metric="train_loss")
    still = alert("plateau", 10, state="open")

    groups = grouped([*slow, spike, overfit, nan, still])

    assert [group.alerts[0].kind for group in groups] == [
        "plateau",
        "nan",
        "spike",
        "overfit",
        "throughput_drop",
    ]
    assert effect_on_loss(nan) == math.inf
    assert effect_on_loss(slow[0]) == 0.0
