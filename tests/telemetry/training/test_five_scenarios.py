"""`perf_tag` and `session_tag` in the five scenarios of OneLogger, each played with real loggers and folders."""

from __future__ import annotations

import pytest

from tests.records import read_records
from tests.telemetry.logged import make_logger
from toolkit.telemetry.runfolder.manifest import read_manifest


class Evicted(Exception):
    """The machine is taken away."""


def run_job(folder, *, start=0, stop=1000, evicted_at=None, **options):
    """Train from `start`, with a checkpoint every 90 iterations, and return the run's folder."""
    log = make_logger(folder, "greyjacket", **options)
    training = log.training
    try:
        with log, training.application(), training.training_loop(train_iterations_start=start):
            for step in range(start, stop):
                if step == evicted_at:
                    raise Evicted
                with training.training_iteration():
                    pass
                log.log_step(step + 1, train_loss=1.0 / (step + 1))
                if (step + 1) % 90 == 0:
                    with training.checkpoint_save(step + 1):
                        pass
    except Evicted:
        pass
    return log.run_folder


def summarised(folders):
    """Return what the start records, the manifests and the applications of these runs say of the tags."""
    starts, sessions, applications = [], [], []
    for folder in dict.fromkeys(folders):
        path = folder / "metrics.jsonl"
        for start in read_records(path, "start"):
            starts.append((start.get("perf_tag"), start["session_tag"]))
        manifest = read_manifest(folder)
        sessions += [(session.perf_tag, session.session_tag) for session in manifest.sessions]
        for event in read_records(path, "span_event"):
            if event["name"] == "one_logger_initialization":
                applications.append(event["attributes"]["session_tag"])
    assert starts == sessions
    assert applications == [session_tag for _, session_tag in sessions]
    return sessions


@pytest.mark.parametrize(
    "change", ["the model's architecture is another", "there are more machines"], ids=["1", "2"]
)
def test_after_a_change_that_matters_two_trainings_are_neither_comparable_nor_one(tmp_path, change):
    first = run_job(tmp_path, stop=5, perf_tag="as it was", session_tag="monday")
    second = run_job(tmp_path, stop=5, perf_tag=change, session_tag="a week later")

    sessions = summarised([first, second])
    assert first != second
    assert sessions == [("as it was", "monday"), (change, "a week later")]


def test_3_after_a_change_that_should_not_matter_two_trainings_are_comparable(tmp_path):
    first = run_job(tmp_path, stop=5, perf_tag="rev 7", session_tag="monday")
    second = run_job(tmp_path, stop=5, perf_tag="rev 7", session_tag="after the security patch")

    sessions = summarised([first, second])
    assert first != second
    assert [perf_tag for perf_tag, _ in sessions] == ["rev 7"] * 2


@pytest.mark.parametrize("resume", [True, False], ids=["in the same folder", "on another machine"])
def test_4_a_job_resumed_after_a_failure_is_comparable_and_part_of_the_same(tmp_path, resume):
    tags = {"perf_tag": "rev 7", "session_tag": "night"}
    first = run_job(tmp_path, evicted_at=100, **tags)
    second = run_job(tmp_path, start=90, stop=110, resume=resume, **tags)

    sessions = summarised([first, second])
    assert (first == second) is resume
    assert sessions == [("rev 7", "night")] * 2
    assert went_on(first, second) == (90, 90)


@pytest.mark.parametrize("resume", [True, False], ids=["in the same folder", "on another machine"])
def test_5_a_job_resumed_with_faster_code_is_part_of_the_same_and_not_comparable(tmp_path, resume):
    first = run_job(tmp_path, evicted_at=100, perf_tag="rev 7", session_tag="night")
    second = run_job(tmp_path, start=90, stop=110, resume=resume, perf_tag="rev 8", session_tag="night")

    sessions = summarised([first, second])
    assert (first == second) is resume
    assert sessions == [("rev 7", "night"), ("rev 8", "night")]
    assert went_on(first, second) == (90, 90)


def went_on(first, second):
    """Return what of the first job's work was safe, and where the second began."""
    safe = [
        event["attributes"]["productive_train_iterations"]
        for event in read_records(first / "metrics.jsonl", "span_event")
        if event["name"] == "save_checkpoint_success"
    ]
    loops = [
        span["attributes"]["train_iterations_start"]
        for span in read_records(second / "metrics.jsonl", "span")
        if span["name"] == "training_loop"
    ]
    return safe[0], loops[-1]


def test_without_tags_a_run_and_its_resumption_are_one_piece_of_work_and_compared_with_nothing(tmp_path):
    first = run_job(tmp_path, evicted_at=3)
    run_job(tmp_path, start=2, stop=4, resume=True)

    assert {perf_tag for perf_tag, _ in summarised([first])} == {None}
