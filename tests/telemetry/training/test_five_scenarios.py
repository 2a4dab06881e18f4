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


# The tags of the first job and of the second, and whether that resumes the first one: in its folder, elsewhere, or not.
SCENARIOS = {
    "1: the model's architecture is another": (("as it was", "monday"), ("new model", "a week later"), None),
    "2: there are more machines": (("as it was", "monday"), ("more machines", "a week later"), None),
    "3: a security patch was installed": (("rev 7", "monday"), ("rev 7", "after the patch"), None),
    "4: it failed, and resumes": (("rev 7", "night"), ("rev 7", "night"), True),
    "4: it failed, and resumes on another machine": (("rev 7", "night"), ("rev 7", "night"), False),
    "5: it failed, and resumes with faster code": (("rev 7", "night"), ("rev 8", "night"), True),
    "5: and on another machine": (("rev 7", "night"), ("rev 8", "night"), False),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_both_tags_of_both_jobs_are_recorded_and_a_resumed_one_continues_what_was_safe(tmp_path, scenario):
    *tags, resume = SCENARIOS[scenario]
    given = [{"perf_tag": perf_tag, "session_tag": session_tag} for perf_tag, session_tag in tags]
    if resume is None:
        first, second = (run_job(tmp_path, stop=5, **each) for each in given)
    else:
        first = run_job(tmp_path, evicted_at=100, **given[0])
        second = run_job(tmp_path, start=90, stop=110, resume=resume, **given[1])
        assert went_on(first, second) == (90, 90)

    assert summarised([first, second]) == tags
    assert (first == second) is bool(resume)


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
