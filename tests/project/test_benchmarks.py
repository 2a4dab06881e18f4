from __future__ import annotations

import json

import pytest

from benchmarks import (
    batch_cost,
    cpu_per_record,
    diagnose_cost,
    figures,
    fleet,
    gpu_loop,
    import_cost,
    importers,
    kill_loss,
    large_values,
    log_cost,
    memory,
    paced,
    span_cost,
    sweep_truth,
)
from benchmarks.child import ChildError, measure_in_child
from benchmarks.command import Options
from benchmarks.contenders import ALL, BARE, NOTHING, OURS
from benchmarks.fleet_lists import Figure
from benchmarks.report import Claim, interval_of_median, median_and_quartiles, percentile
from tests.lengths import is_long

QUICK = Options(quick=True, only=(NOTHING.name, BARE.name, OURS.name))


SHORT = [log_cost, import_cost, gpu_loop]
"""Benchmarks that take seconds."""

OTHERS = [
    batch_cost,
    large_values,
    span_cost,
    cpu_per_record,
    memory,
    kill_loss,
    diagnose_cost,
    importers,
    paced,
    fleet,
    sweep_truth,
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "benchmark",
    [*SHORT, *(OTHERS if is_long() else [])],
    ids=lambda module: module.__name__.split(".")[-1],
)
def test_a_quick_run_gives_figures(benchmark, capsys):
    report = benchmark.build(QUICK)
    report.show()

    printed = capsys.readouterr().out
    assert report.title in printed
    json.dumps(report.as_json(), allow_nan=False)
    assert report.rows or "Not measured" in printed


def test_a_missing_peer_is_noted(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    present, notes = Options(only=("trackio", "ours")).choose(ALL.values())

    assert [contender.name for contender in present] == ["ours"]
    assert notes == ["Trackio: not measured, trackio not installed"]


def test_a_measurement_that_fails_shows_why():
    with pytest.raises(ChildError, match="KeyError: 'no such logger'"):
        measure_in_child(log_cost.time_calls, "no such logger", 1, 1)


@pytest.mark.parametrize(
    ("measured", "at_least", "verdict"),
    [(1.9, False, "held"), (2.1, False, "missed"), (2.1, True, "held"), (1.9, True, "missed")],
)
def test_a_claim_says_whether_it_held(measured, at_least, verdict):
    claim = Claim(text="x", measured=measured, limit=2.0, unit="x", at_least=at_least)

    assert claim.verdict == verdict
    assert str(claim).startswith(verdict.upper())


def test_a_busy_machine_decides_nothing():
    assert Claim(text="x", measured=0.1, limit=7.0, unit=" %", too_noisy=True).verdict == "undecided"


def test_percentiles_stay_inside_what_was_measured():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0], 0.99) == 1.0
    assert median_and_quartiles([5.0]) == (5.0, 5.0, 5.0)
    assert interval_of_median([1.0, 2.0, 3.0] * 20) == (2.0, 2.0)


def test_each_figure_of_a_fleet_is_compared_with_the_limit_of_its_engine():
    timed = {"engine_ms": 140.0, "page_ms": 20.0, "wall_ms": 1.0}
    found = {line.figure: timed if line.unit == " ms" else 0.005 for line in fleet._LINES}
    plan = {"runs": 12_000, "records": 1_000_000, "small": 64, "jobs": 50}
    lists = [
        Figure(12_000, "first page", 39.0, 61.0, 1.0),
        Figure(1_000, "first page", 39.0, 61.0, 1.0),
        Figure(1_000, "what changed", 9.0, 1.0, 1.0),
    ]
    del found["idle_calls"]

    report = fleet._report(plan, {**found, "bytes": 160.0, "memory_mb": 1.0}, lists)

    verdicts = {claim.text: claim.verdict for claim in report.claims}
    assert {text: verdict for text, verdict in verdicts.items() if text.startswith("list")} == {
        "list of 12,000 runs: first page, engine": "held",
        "list of 12,000 runs: first page, dashboard": "missed",
        "list of 1,000 runs: what changed, engine": "held",
        "list of 1,000 runs: what changed, dashboard": "held",
    }
    assert verdicts["compare 8 runs, rows included"] == "held"
    assert verdicts["stored of a record of 8 numbers"] == "held"
    assert verdicts["shipper at 100 records/s, of a core"] == "held"
    assert report.rows[0] == ["take in a value, merges included", "0.005 µs", "10 µs"]


def test_the_documents_show_the_figures_of_the_last_full_run():
    for path, text in figures.documents().items():
        document = path.read_text(encoding="utf-8")

        assert figures.put_between_marks(document, text) == document, (
            f"{path.name}: python -m benchmarks.figures"
        )


def test_a_document_without_markers_is_not_changed():
    with pytest.raises(ValueError, match="no place for figures"):
        figures.put_between_marks("# A document", "1 µs")
