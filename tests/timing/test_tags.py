"""Jobs grouped by what they can be compared with, and by the piece of work that they do together."""

from __future__ import annotations

from toolkit.runfolder.manifest import Manifest, Session
from toolkit.timing.tags import by_perf_tag, by_session_tag, jobs_of


def manifest(run_id, *sessions):
    return Manifest(
        run_id=run_id,
        name=run_id,
        display_name=run_id,
        created=0.0,
        sessions=tuple(
            Session(session=number, started=started, pid=1, perf_tag=perf_tag, session_tag=session_tag)
            for number, (started, perf_tag, session_tag) in enumerate(sessions, 1)
        ),
    )


def who(groups):
    return {tag: [(job.run_id, job.session) for job in jobs] for tag, jobs in groups.items()}


def test_jobs_of_several_runs_are_found_under_each_of_their_tags_the_oldest_first():
    jobs = jobs_of(
        [
            manifest("b", (3.0, "a100,bf16", "night")),
            manifest("a", (1.0, "a100", "night"), (5.0, "h100", "night"), (7.0, None, "day")),
        ]
    )

    assert who(by_perf_tag(jobs)) == {
        "a100": [("a", 1), ("b", 1)],
        "bf16": [("b", 1)],
        "h100": [("a", 2)],
    }
    assert who(by_session_tag(jobs)) == {"night": [("a", 1), ("b", 1), ("a", 2)], "day": [("a", 3)]}


def test_a_run_written_before_there_were_tags_does_one_piece_of_work():
    jobs = jobs_of([manifest("a", (1.0, None, None), (2.0, None, None))])

    assert by_perf_tag(jobs) == {}
    assert who(by_session_tag(jobs)) == {"a": [("a", 1), ("a", 2)]}


def test_a_session_without_its_own_tag_continues_the_one_before_it():
    # A session that is given no tag is written with the run's id.
    jobs = jobs_of([manifest("a", (1.0, "x", "night"), (2.0, None, "a"), (3.0, None, None))])

    assert who(by_session_tag(jobs)) == {"night": [("a", 1), ("a", 2), ("a", 3)]}


def test_a_tag_that_is_given_twice_or_is_empty_counts_once_or_not_at_all():
    [job] = jobs_of([manifest("a", (1.0, " a100, ,a100,", None))])

    assert job.perf_tags == ("a100",)
    assert jobs_of([manifest("b")]) == []
