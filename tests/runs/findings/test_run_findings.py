"""Findings and the ledger see each record of a file once, a slice at a time, and say the same as over all at once."""

from __future__ import annotations

import os

import pytest

from tests.dashboard.troubled_runs import steps
from tests.made_runs import append, write_run
from toolkit.telemetry.diagnostics.examiner import Examiner, examine
from toolkit.telemetry.diagnostics.policy import Policy
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.reader import read_from
from toolkit.telemetry.runs import record_source
from toolkit.telemetry.runs.columns.column_cache import ColumnCache
from toolkit.telemetry.runs.findings import run_analysis
from toolkit.telemetry.runs.findings.run_analysis import RunFindings, RunLedger
from toolkit.telemetry.runs.record_source import FileSource
from toolkit.telemetry.timing.ledger import LedgerBuilder


@pytest.fixture(autouse=True)
def _short_slices(monkeypatch):
    """Have a file of some hundred records examined in parts, too."""
    monkeypatch.setattr(record_source, "LONGEST", 100)


@pytest.fixture
def shown(monkeypatch):
    """Count the records that detectors are shown."""
    seen = []

    class Counting(Examiner):
        def take(self, records):
            records = list(records)
            seen.extend(records)
            return super().take(records)

    monkeypatch.setattr(run_analysis, "Examiner", Counting)
    return seen


def findings_of(folder):
    return RunFindings(FileSource(folder / METRICS_JSONL))


def until_done(findings):
    looks = 1
    while findings.advance(0.0) < 1.0:
        looks += 1
        assert looks < 10_000
    return looks


@pytest.mark.parametrize("trouble", ["", "nan", "spike", "divergence"])
def test_it_finds_what_an_examination_of_all_records_at_once_finds(tmp_path, trouble):
    folder = write_run(tmp_path, "r", steps(trouble))
    findings = findings_of(folder)

    until_done(findings)

    at_once = examine(read_from(folder / METRICS_JSONL).records)
    assert list(findings.findings) == list(at_once)
    assert bool(at_once) == bool(trouble)


def test_a_long_file_is_examined_in_slices_and_says_how_far_it_is(tmp_path):
    findings = findings_of(write_run(tmp_path, "r", steps(count=2_000)))

    parts = [findings.advance(0.0)]
    while parts[-1] < 1.0:
        parts.append(findings.advance(0.0))

    assert len(parts) >= 10
    assert parts == sorted(parts)
    assert 0.0 < parts[0] < 0.2


def test_each_record_is_shown_once_however_often_the_file_grows(tmp_path, shown):
    records = steps("spike")
    folder = write_run(tmp_path, "r", records[:100])
    findings = findings_of(folder)
    findings.advance(60.0)
    for start in range(100, len(records), 37):
        append(folder, records[start : start + 37])

        assert findings.advance(60.0) == 1.0

    assert [record.get("global_step") for record in shown] == [
        record.get("global_step") for record in records
    ]
    assert [finding.kind for finding in findings.findings] == ["spike"]

    findings.advance(60.0)

    assert len(shown) == len(records), "nothing was appended"


@pytest.mark.parametrize("replaced", [True, False])
def test_a_run_that_was_replaced_or_truncated_is_examined_again(tmp_path, replaced):
    folder = write_run(tmp_path, "r", steps("nan"))
    findings = findings_of(folder)
    until_done(findings)
    assert findings.findings

    if replaced:
        os.replace(write_run(tmp_path, "other", steps()) / METRICS_JSONL, folder / METRICS_JSONL)
    else:
        (folder / METRICS_JSONL).write_bytes(b"")
        append(folder, steps(count=50))

    assert until_done(findings)
    assert findings.findings == ()


def test_who_comes_while_another_is_at_it_does_not_wait(tmp_path):
    findings = findings_of(write_run(tmp_path, "r", steps()))

    with findings._busy:
        assert findings.advance(60.0) == 0.0, "so that a page comes back"
        assert findings.findings == ()

    assert findings.advance(60.0) == 1.0


def test_the_ledger_says_the_same_as_a_book_of_all_records_at_once(tmp_path):
    spent = {"ledger/training": 0.4, "ledger/data_wait": 0.1}
    records = [{"event": "start", "seq": 0, "session": 1, "time": 1.7e9, "elapsed": 0.0}]
    for step in range(1, 601):
        clock = {"time": 1.7e9 + step / 2, "elapsed": step / 2}
        records.append({"event": "step", "seq": step, "session": 1, "global_step": step, **clock, **spent})
    log = write_run(tmp_path, "r", records) / METRICS_JSONL
    book = LedgerBuilder()
    book.take(read_from(log).records)
    ledger = RunLedger(FileSource(log))

    looks = 1
    while (known := ledger.advance(0.0)).fraction < 1.0:
        looks += 1
        assert looks < 10_000

    assert looks > 3
    assert known.ledger == book.ledger()
    assert known.ledger.goodput == pytest.approx(0.8, abs=0.01)


# ---------------------------------------------------------------- from one start to the next


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(run_analysis, "_MIN_SAVED_BYTES", 0)
    return ColumnCache(tmp_path / "cache")


def started(folder, cache, policy=None):
    """Return the findings of a dashboard that has just started."""
    log = folder / METRICS_JSONL
    policy = policy or Policy()
    return RunFindings(FileSource(log), policy, cache)


def test_a_file_is_not_examined_again_after_a_restart(tmp_path, cache, shown):
    folder = write_run(tmp_path / "runs", "r", steps("divergence"))
    first = started(folder, cache)
    until_done(first)
    before = sorted(path.name for path in folder.rglob("*"))
    examined = len(shown)

    second = started(folder, cache)

    assert second.advance(0.0) == 1.0
    assert second.fraction == 1.0
    assert second.findings == first.findings
    assert second.findings
    assert len(shown) == examined
    assert sorted(path.name for path in folder.rglob("*")) == before
    assert cache.size() > 0


def test_a_file_that_has_grown_is_examined_again_and_shows_the_saved_findings_meanwhile(
    tmp_path, cache, shown
):
    folder = write_run(tmp_path / "runs", "r", steps("divergence"))
    first = started(folder, cache)
    until_done(first)
    second = started(folder, cache)
    second.advance(0.0)
    shown.clear()
    last = read_from(folder / METRICS_JSONL).records[-1]
    append(folder, [{**last, "global_step": last["global_step"] + 1}])

    assert second.advance(0.0) < 1.0
    assert second.findings == first.findings
    until_done(second)

    records = read_from(folder / METRICS_JSONL).records
    assert len(shown) == len(records)
    assert list(second.findings) == list(examine(records))


@pytest.mark.parametrize("change", ["version", "policy", "rewritten", "corrupt", "cleared"])
def test_saved_findings_that_do_not_fit_are_not_used(tmp_path, cache, shown, monkeypatch, change):
    folder = write_run(tmp_path / "runs", "r", steps("divergence"))
    until_done(started(folder, cache))
    policy = None
    if change == "version":
        monkeypatch.setattr(run_analysis, "_version_of_detectors", lambda: "another")
    elif change == "policy":
        policy = Policy(severities={"divergence": "off"})
    elif change == "rewritten":
        path = folder / METRICS_JSONL
        path.write_bytes(path.read_bytes().replace(b'"time":1', b'"time":2'))
    elif change == "corrupt":
        for path in cache.folder.iterdir():
            path.write_bytes(path.read_bytes().replace(b'"kind"', b'"sort"'))
    else:
        assert cache.clear() > 0
    shown.clear()

    second = started(folder, cache, policy)
    until_done(second)

    assert shown
    assert bool(second.findings) == (change != "policy")
