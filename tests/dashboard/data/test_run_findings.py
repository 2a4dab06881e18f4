"""The detectors are shown each record of a file once, a slice at a time, and say the same as over all of it at once."""

from __future__ import annotations

import math
import os

import pytest

from dashboard.data import run_analysis, run_exam
from dashboard.data.run_exam import RunExam
from tests.dashboard.run_folders import append, write_run
from tests.dashboard.troubled_runs import steps, told
from toolkit.diagnostics.examiner import Examiner, examine
from toolkit.runfolder.layout import METRICS_JSONL
from toolkit.runfolder.reader import read_from


@pytest.fixture
def shown(monkeypatch):
    """Count the records that detectors are shown."""
    seen = []

    class Counting(Examiner):
        def take(self, records):
            records = list(records)
            seen.extend(records)
            return super().take(records)

    monkeypatch.setattr(run_exam, "Examiner", Counting)
    return seen


def exam_of(folder):
    return RunExam(folder / METRICS_JSONL)


def until_done(exam):
    looks = 1
    while exam.look(0.0) < 1.0:
        looks += 1
        assert looks < 10_000
    return looks


@pytest.mark.parametrize("trouble", ["", "nan", "spike", "divergence"])
def test_it_finds_what_an_examination_of_all_records_at_once_finds(tmp_path, trouble):
    folder = write_run(tmp_path, "r", steps(trouble))
    exam = exam_of(folder)

    until_done(exam)

    at_once = examine(read_from(folder / METRICS_JSONL).records)
    assert list(exam.findings) == list(at_once)
    assert bool(at_once) == bool(trouble)


def test_what_the_run_was_told_itself_changes_nothing(tmp_path):
    plain = exam_of(write_run(tmp_path, "plain", steps("divergence")))
    live = exam_of(write_run(tmp_path, "live", told(steps("divergence"))))

    until_done(plain)
    until_done(live)

    assert plain.findings == live.findings
    assert plain.findings


def test_a_long_file_is_examined_in_slices_and_says_how_far_it_is(tmp_path):
    exam = exam_of(write_run(tmp_path, "r", steps(count=2_000)))

    parts = [exam.look(0.0)]
    while parts[-1] < 1.0:
        parts.append(exam.look(0.0))

    assert len(parts) >= 10
    assert parts == sorted(parts)
    assert 0.0 < parts[0] < 0.2


def test_a_file_larger_than_a_block_is_not_done_after_its_first(tmp_path, monkeypatch):
    monkeypatch.setattr(record_slices, "_RECORDS_AT_ONCE", 10_000)
    exam = exam_of(write_run(tmp_path, "r", steps(count=9_000, note="x" * 60)))

    first = exam.look(0.0)

    assert 0.1 < first < 0.9
    assert exam.look(60.0) == 1.0


def test_each_record_is_shown_once_however_often_the_file_grows(tmp_path, shown):
    records = steps("spike")
    folder = write_run(tmp_path, "r", records[:100])
    exam = exam_of(folder)
    exam.look(60.0)
    for start in range(100, len(records), 37):
        append(folder, records[start : start + 37])

        assert exam.look(60.0) == 1.0

    assert [record.get("global_step") for record in shown] == [
        record.get("global_step") for record in records
    ]
    assert [finding.kind for finding in exam.findings] == ["spike"]


def test_nothing_is_read_again_where_nothing_was_appended(tmp_path, shown):
    exam = exam_of(write_run(tmp_path, "r", steps()))
    exam.look(60.0)
    number = len(shown)

    exam.look(60.0)

    assert len(shown) == number


def test_a_line_that_is_being_written_is_left_for_later_and_not_waited_for(tmp_path, shown):
    folder = write_run(tmp_path, "r", steps(count=10))
    with (folder / METRICS_JSONL).open("ab") as file:
        file.write(b'{"event":"step","global_step":10,')
    exam = exam_of(folder)

    assert exam.look(60.0) == 1.0
    number = len(shown)

    with (folder / METRICS_JSONL).open("ab") as file:
        file.write(b'"train_loss":1.0}\n')
    exam.look(60.0)

    assert len(shown) == number + 1


def test_a_run_that_was_replaced_is_examined_anew(tmp_path):
    folder = write_run(tmp_path, "r", steps("divergence"))
    exam = exam_of(folder)
    until_done(exam)

    other = write_run(tmp_path, "other", steps())
    os.replace(other / METRICS_JSONL, folder / METRICS_JSONL)

    assert until_done(exam)
    assert exam.findings == ()


def test_a_run_that_was_truncated_is_examined_anew(tmp_path):
    folder = write_run(tmp_path, "r", steps("nan"))
    exam = exam_of(folder)
    until_done(exam)
    assert exam.findings

    (folder / METRICS_JSONL).write_bytes(b"")
    append(folder, steps(count=50))

    assert until_done(exam)
    assert exam.findings == ()


def test_bad_and_endless_lines_are_passed_over(tmp_path):
    records = steps("nan")
    folder = write_run(tmp_path, "r", records[:100])
    with (folder / METRICS_JSONL).open("ab") as file:
        file.write(b"\xff not JSON\n" + b"x" * 3_000_000 + b"\n")
    append(folder, records[100:])
    exam = exam_of(folder)

    until_done(exam)

    assert [finding.kind for finding in exam.findings] == ["nan"]
    assert exam.findings[0].count == sum(math.isnan(record.get("train_loss", 0.0)) for record in records)


def test_a_file_that_is_not_there_holds_nothing(tmp_path):
    exam = RunExam(tmp_path / "none.jsonl")

    assert exam.look(1.0) == 1.0
    assert exam.findings == ()


def test_who_comes_while_another_is_at_it_does_not_wait(tmp_path):
    exam = exam_of(write_run(tmp_path, "r", steps()))

    with exam._at_work:
        assert exam.look(60.0) == 0.0, "so that a page comes back"
        assert exam.findings == ()

    assert exam.look(60.0) == 1.0
