"""How runs with injected rank faults are scored, and that real ranks are made and read."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.rank_faults.__main__ import main
from benchmarks.rank_faults.cases import FAULTS, NO_FAULT, cases
from benchmarks.rank_faults.launch import as_json, from_json
from benchmarks.rank_faults.score import Result, judge
from benchmarks.rank_faults.tables import tables_of
from tests.lengths import in_make_faults

CASES = {(case.fault, case.variant): case for case in cases()}


def found(kind="straggler", ranks=(), *, after=2.0, metric="time/data_loading", message="", **more):
    about = {"severity": "warning", "state": "open", "step": 1, "ratio": None, "by": "live"}
    return {
        **about,
        "kind": kind,
        "ranks": list(ranks),
        "time": 100.0 + after,
        "metric": metric,
        "message": message,
        **more,
    }


def result(fault="slow data loader", *findings):
    case = CASES[fault, 0]
    return Result(
        case, findings=list(findings), struck_at=100.0 if case.ranks else None, steps=9, seconds=9.0
    )


def test_there_are_as_many_runs_of_each_fault_as_the_tables_claim():
    counts = Counter((case.fault, case.world) for case in cases())

    assert counts == {
        (fault, world): 30 if fault == NO_FAULT else 10 for fault in (NO_FAULT, *FAULTS) for world in (4, 8)
    }
    assert all(case.ranks for case in cases() if case.fault != NO_FAULT)


def test_a_finding_is_right_if_it_names_the_rank_and_the_part_after_the_fault():
    (rank,) = CASES["slow data loader", 0].ranks
    right = judge(result("slow data loader", found(ranks=[rank])))
    other_part = judge(result("slow data loader", found(ranks=[rank], metric="time/forward")))

    assert (right.is_detected, right.is_right_rank, right.is_right_part, right.seconds) == (
        True,
        True,
        True,
        2.0,
    )
    assert other_part.is_right_part is False
    assert not right.false_alarms


@pytest.mark.parametrize("more", [{"ranks": [97]}, {"after": -1.0}, {"kind": "rank_nan"}])
def test_what_is_about_another_rank_or_kind_or_too_early_is_a_false_alarm(more):
    about = {"ranks": list(CASES["slow data loader", 0].ranks), **more}
    judgement = judge(result("slow data loader", found(**about)))

    assert not judgement.is_detected
    assert len(judgement.false_alarms) == 1


def test_any_warning_about_ranks_is_a_false_alarm_without_a_fault():
    assert len(judge(result(NO_FAULT, found(ranks=[1]))).false_alarms) == 1
    assert not judge(result(NO_FAULT, found("plateau"), found(ranks=[1], severity="info"))).false_alarms


def test_the_tables_have_every_fault_and_name_what_was_wrong():
    known = [result(NO_FAULT, found(ranks=[1], message="Rank 1 is slow.")), result("killed")]
    text = tables_of([(each, judge(each)) for each in map(from_json, map(as_json, known))], "on a test")

    assert all(f"| {fault} |" in text for fault in FAULTS)
    assert "1 runs, 0.0 rank-hours, 1 false alarms" in text
    assert "straggler: Rank 1 is slow." in text
    assert "- killed, " in text


@in_make_faults
def test_real_ranks_are_killed_and_named(tmp_path, capfd):
    assert main(["run", "--out", str(tmp_path), "--of-each", "1", "--only", "killed", "node dies"]) == 0
    results = [from_json(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]

    assert sorted(each.case.fault for each in results) == ["killed", "node dies"]
    assert all(judge(each).is_right_rank for each in results), capfd.readouterr().err
