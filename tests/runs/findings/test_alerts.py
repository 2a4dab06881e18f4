"""One alert an incident: from the run's own records where it was reported, else from what detectors find in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.dashboard.troubled_runs import steps, with_findings
from tests.made_runs import append, finding_record, write_run
from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runfolder.manifest import read_manifest, write_manifest
from toolkit.telemetry.runs.findings.alerts import alerts_of, is_dismissed
from toolkit.telemetry.runs.sources.local_store import LocalStore


@pytest.fixture
def store(tmp_path):
    return LocalStore([tmp_path], cache_dir=None)


def read(store, *, examined=True):
    store.refresh("r", wait_s=60.0)
    if examined:
        store.examine("r", wait_s=60.0)
    return alerts_of(store, "r")


def test_how_far_an_open_one_has_come_is_known_between_two_records_of_it(tmp_path, store):
    records = with_findings(steps("nan", count=300))
    write_run(tmp_path, "r", records)
    before = read(store, examined=False)[0].count

    after = read(store)[0]

    assert before < after.count == 150
    assert "150 records" in after.message


def test_nan_is_known_before_the_detectors_have_come_to_it(tmp_path, store):
    write_run(tmp_path, "r", steps("nan"))

    (early,) = read(store, examined=False)
    (late,) = read(store)

    assert "NaN or infinite 200 times, first at step 200" in early.message
    assert early.severity == late.severity == "critical"
    assert late.id == "1-nan-train_loss-200"


def test_the_worst_comes_first_and_open_before_over(tmp_path, store):
    write_run(tmp_path, "r", steps("spike"))
    finding = {"event": "finding", "kind": "x", "metric": "m", "message": "", "noticed_step": 5}
    append(
        tmp_path / "r",
        [
            {**finding, "id": "old", "severity": "warning", "state": "open", "start_step": 1},
            {**finding, "id": "late", "severity": "warning", "state": "open", "start_step": 1}
            | {"noticed_step": 9},
            {**finding, "id": "mild", "severity": "info", "state": "open", "start_step": 300},
            {"event": "error", "message": "no file", "time": 1.7e9},
        ],
    )

    found = read(store)

    assert [alert.id for alert in found if alert.event == "finding"] == [
        "late",
        "old",
        "1-spike-train_loss-200",
        "mild",
    ]
    assert found[0].kind == "error"


# ---------------------------------------------------------------- what the store keeps


def test_what_the_runs_own_yaml_silenced_stays_silent(tmp_path, store):
    folder = write_run(tmp_path, "r", steps("divergence"))
    write_manifest(
        folder, replace(read_manifest(folder), diagnostics={"divergence": "off", "no such kind": 7})
    )

    assert read(store) == []

    write_manifest(folder, replace(read_manifest(folder), diagnostics={"divergence": "info"}))
    store._rescan()

    assert [alert.severity for alert in read(store)] == ["info"]


def test_values_around_a_time_are_those_just_before_and_just_after(tmp_path, store):
    write_run(
        tmp_path, "r", curves={"train_loss": float, "rare": float}, sessions=(range(100),), began=1000.0
    )
    store.refresh("r", wait_s=60.0)

    before, after = store.values_around("r", "train_loss", 1000.0 + 0.5 * 50, 3)

    assert (before.tolist(), after.tolist()) == ([48.0, 49.0, 50.0], [51.0, 52.0, 53.0])
    assert [part.tolist() for part in store.values_around("r", "train_loss", 1e12, 2)] == [[98.0, 99.0], []]
    assert [part.tolist() for part in store.values_around("r", "train_loss", 0.0, 2)] == [[], [0.0, 1.0]]
    assert [len(part) for part in store.values_around("r", "none", 1000.0, 2)] == [0, 0]


def test_a_spike_that_was_seen_is_news_again_as_a_divergence(tmp_path, store):
    write_run(tmp_path, "r", steps("divergence"))
    (alert,) = read(store)
    as_spike = replace(alert, kind="spike")

    assert alert.acknowledged_key != as_spike.acknowledged_key
    assert not is_dismissed(alert, Labels(acknowledged=(as_spike.acknowledged_key,)))
    assert is_dismissed(alert, Labels(acknowledged=(alert.acknowledged_key,)))


# ---------------------------------------------------------------- errors and hangs


def error(**fields):
    return {
        "event": "error",
        "seq": 900,
        "session": 1,
        "time": 1_700_000_500.0,
        "global_step": 399,
        "id": "1-error-abc",
        "type": "ValueError",
        "message": "ValueError: bad batch",
        "count": 1,
        "stack": ["train.py:3 in main", "train.py:9 in load"],
        **fields,
    }


@pytest.mark.parametrize(
    ("steps_of_the_second", "status", "state"),
    [
        (range(300, 500), "finished", "resolved"),
        (range(300, 450), "running", "resolved"),
        (range(300, 350), "running", "open"),
        (range(0), "running", "open"),
    ],
)
def test_an_error_is_over_once_a_later_session_got_beyond_it(
    tmp_path, store, steps_of_the_second, status, state
):
    write_run(tmp_path, "r", sessions=(range(400), steps_of_the_second), status=status, extra=[error()])

    (alert,) = [alert for alert in read(store) if alert.kind == "error"]

    assert alert.state == state
    assert alert.resolved_step == (300 if state == "resolved" else None)


def test_how_often_an_error_came_in_all_is_what_the_end_record_says(tmp_path, store):
    kinds = [{"type": "ValueError", "fingerprint": "abc", "count": 17}, {"fingerprint": "x"}, 7]
    end = {"event": "end", "seq": 999, "session": 1, "time": 1_700_000_600.0, "status": "finished"}
    write_run(tmp_path, "r", [*steps(), error(), {**end, "errors": kinds}, {**end, "seq": 1000, "errors": 3}])

    (alert,) = read(store)

    assert alert.count == 17


@pytest.mark.parametrize("name", ["open_spans", "spans"])
def test_a_hang_that_is_over_still_shows_where_its_threads_were(tmp_path, store, name):
    about = {
        "stacks": [
            {"threads": ["MainThread"], "stack": ["train.py:3 in main", "dist.py:9 in all_reduce"]},
            {"threads": ["a", "b"], "more_threads": 3, "stack": ["queue.py:1 in get"]},
        ],
        "threads_left_out": 2,
        name: [{"name": "all_reduce", "seconds": 61.0}],
        "gpu": {"gpu_util": 100},
        "not_answering": ["nvml"],
    }
    hang = finding_record("hang", 399, metric="global_step") | about
    over = {**hang, "state": "resolved", "resolved_step": 400, "end_step": 400}
    for field in about:
        del over[field]
    write_run(tmp_path, "r", [*steps(), hang, over])

    (alert,) = read(store)

    assert (title_of(alert), alert.state) == ("Hang", "resolved")
    assert [detail.title for detail in alert.details] == [
        "Stack of MainThread",
        "Stack of a, b, 3 more",
        "More threads",
        "Context",
        "GPU",
    ]
    assert alert.details[0].text.endswith("dist.py:9 in all_reduce")
    assert alert.details[3].text == "open span: all_reduce, 61.0 s\nnot responding: nvml"
