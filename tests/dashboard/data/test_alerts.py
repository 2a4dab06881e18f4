"""One alert an incident: from the run's own records where it was told, else from what the detectors find in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboard.data.alerts import alerts_of, findings_of, is_put_away, news_in
from dashboard.data.local_store import LocalStore
from tests.dashboard.run_folders import append, write_run
from tests.dashboard.troubled_runs import steps, told
from toolkit.runfolder.labels import Labels
from toolkit.runfolder.manifest import read_manifest, write_manifest


@pytest.fixture
def store(tmp_path):
    return LocalStore([tmp_path], cache_dir=None)


def read(store, *, examined=True):
    store.refresh("r")
    if examined:
        store.examine("r", wait_s=10.0)
    return alerts_of(store, "r")


def test_a_run_without_finding_records_is_examined(tmp_path, store):
    write_run(tmp_path, "r", steps("divergence"))

    (alert,) = read(store)

    assert (alert.kind, alert.severity, alert.state) == ("divergence", "critical", "open")
    assert alert.title == "Divergence"
    assert 200 <= alert.step <= 205
    assert alert.time is None, "nobody was told"
    assert alert.remedies[0] == "lr_scale"


def test_what_was_told_and_what_is_found_are_one_alert(tmp_path, store):
    write_run(tmp_path, "r", told(steps("divergence")))

    (alert,) = read(store)

    assert alert.kind == "divergence"
    assert alert.time == 1.7e9 + 0.5 * alert.noticed_step, "the first record of it, not the last"


def test_the_newest_record_of_an_id_counts(tmp_path, store):
    write_run(tmp_path, "r", told(steps("spike")))

    (alert,) = read(store, examined=False)

    assert alert.state == "resolved"
    assert alert.resolved_step is not None


def test_how_far_an_open_one_has_come_is_known_between_two_records_of_it(tmp_path, store):
    records = told(steps("nan", count=300))
    write_run(tmp_path, "r", records)
    before = read(store, examined=False)[0].count

    after = read(store)[0]

    assert before < after.count == 150
    assert "150 records" in after.message


def test_its_own_severity_stays(tmp_path, store):
    records = [
        {**record, "severity": "info"} if record["event"] == "finding" else record
        for record in told(steps("divergence"))
    ]
    write_run(tmp_path, "r", records)

    assert [alert.severity for alert in read(store)] == ["info"]


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


def test_records_without_an_id_are_alerts_of_their_own(tmp_path, store):
    odd = {"event": "finding", "severity": "warning", "message": "x"}
    write_run(tmp_path, "r", extra=[{**odd, "seq": 900}, {**odd, "seq": 901}, {"event": "finding"}])

    assert len({alert.id for alert in read(store)}) == 3


def test_news_is_what_goes_on_and_nobody_has_seen_or_muted(tmp_path, store):
    write_run(tmp_path, "r", steps("divergence"))
    (alert,) = found = read(store)

    assert news_in(found, Labels()) == found
    assert news_in(found, Labels(acknowledged=(alert.seen_as,))) == []
    assert news_in(found, Labels(muted=("divergence",))) == []
    assert news_in(found, Labels(muted=("spike",), acknowledged=("another",))) == found
    assert news_in([replace(alert, state="resolved")], Labels()) == []
    assert not is_put_away(alert, Labels())


# ---------------------------------------------------------------- what the store keeps


def test_the_store_examines_only_what_was_appended_and_forgets_a_deleted_run(tmp_path, store):
    folder = write_run(tmp_path, "r", steps("divergence")[:150])
    assert store.examine("r", wait_s=10.0) == 1.0
    assert store.findings("r") == ()

    append(folder, steps("divergence")[150:])
    store.examine("r", wait_s=10.0)

    assert [finding.kind for finding in store.findings("r")] == ["divergence"]

    store.delete("r")
    write_run(tmp_path, "r", steps())
    store._look_again()

    assert store.findings("r") == ()


def test_what_the_runs_own_yaml_silenced_stays_silent(tmp_path, store):
    folder = write_run(tmp_path, "r", steps("divergence"))
    write_manifest(
        folder, replace(read_manifest(folder), diagnostics={"divergence": "off", "no such kind": 7})
    )

    assert read(store) == []

    write_manifest(folder, replace(read_manifest(folder), diagnostics={"divergence": "info"}))
    store._look_again()

    assert [alert.severity for alert in read(store)] == ["info"]


def test_findings_are_not_asked_for_until_somebody_examines(tmp_path, store):
    write_run(tmp_path, "r", steps("divergence"))
    store.refresh("r")

    assert findings_of(store, "r") == []


def test_values_beside_a_moment_are_those_just_before_and_just_after(tmp_path, store):
    write_run(
        tmp_path, "r", curves={"train_loss": float, "rare": float}, sessions=(range(100),), began=1000.0
    )
    store.refresh("r")

    before, after = store.beside("r", "train_loss", 1000.0 + 0.5 * 50, 3)

    assert (before.tolist(), after.tolist()) == ([48.0, 49.0, 50.0], [51.0, 52.0, 53.0])
    assert [part.tolist() for part in store.beside("r", "train_loss", 1e12, 2)] == [[98.0, 99.0], []]
    assert [part.tolist() for part in store.beside("r", "train_loss", 0.0, 2)] == [[], [0.0, 1.0]]
    assert [len(part) for part in store.beside("r", "none", 1000.0, 2)] == [0, 0]


def test_a_spike_that_was_seen_is_news_again_as_a_divergence(tmp_path, store):
    write_run(tmp_path, "r", steps("divergence"))
    (alert,) = read(store)
    as_spike = replace(alert, kind="spike")

    assert alert.seen_as != as_spike.seen_as
    assert not is_put_away(alert, Labels(acknowledged=(as_spike.seen_as,)))
    assert is_put_away(alert, Labels(acknowledged=(alert.seen_as,)))
