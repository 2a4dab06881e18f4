"""A day of training, lived through at speed: nothing grows that should not."""

from __future__ import annotations

import pytest

from tests.lengths import in_make_faults, longer
from tests.load import day as load_day
from toolkit.telemetry.runfolder.table.columns import WITHOUT_ROWS

STEPS = longer(1_200, load_day.STEPS_AN_HOUR)
PARTS = longer(4, 24)
PARTS_A_SESSION = longer(2, 6)


@in_make_faults
@pytest.mark.slow
@pytest.mark.timeout(longer(240, 3000))
def test_a_day_of_training_grows_neither_memory_nor_files_nor_threads(tmp_path, record_property):
    day = load_day.live(tmp_path, PARTS, steps=STEPS, parts_a_session=PARTS_A_SESSION)

    points, counts = day["points"], day["counts"]
    early, late = points[PARTS // 4], points[-1]
    grown_kb = late["traced_kb"] - early["traced_kb"]
    hours = day["lived_s"] / 3600
    megabytes = sum(day["bytes"].values()) / 1e6
    record_property(
        "measured",
        f"{hours:.1f} hours with {day['steps']:,} steps and {day['sessions']} sessions: {grown_kb / 1024:+.1f} MB "
        f"in the trainer, {late['files'] - early['files']:+.0f} open files, {megabytes:.1f} MB on disk",
    )
    assert day["runs"] == 1
    assert day["out_of_order"] == 0
    assert day["telemetry_errors"] == 0
    assert day["left_over"] == 0
    # One system record every five seconds of the day, one answer to each request, one row a record that has one.
    assert 0.9 < counts["system"] / (day["lived_s"] / load_day.SYSTEM_EVERY_S) < 1.05
    assert sum(day["answers"].values()) == day["asked"] == PARTS
    assert day["rows"] == sum(count for event, count in counts.items() if event not in WITHOUT_ROWS)
    assert counts["start"] == counts["end"] == day["sessions"] == day["sessions_in_manifest"]
    assert counts["step"] >= day["steps"] / 12
    # Nothing in the process grows: its own objects, descriptors, threads. A megabyte is what waits for a sync.
    assert grown_kb < 4_096
    assert late["rss_mb"] - early["rss_mb"] < 64
    # One or two may be open for the time that a thread looks at something.
    assert late["files"] <= early["files"] + 2
    assert late["threads"] <= early["threads"] + 1
    # Nor where someone looks on, but for the records themselves.
    seen = late["dashboard"]["records"] - early["dashboard"]["records"]
    grown_bytes = (late["dashboard"]["rss_mb"] - early["dashboard"]["rss_mb"]) * 1024 * 1024
    assert grown_bytes < 24e6 + 2_000 * seen
    assert late["dashboard"]["files"] <= early["dashboard"]["files"] + 1
    assert late["dashboard"]["threads"] <= early["dashboard"]["threads"] + 1
    # A spike each quarter of an hour is reported, and not for ever as something new.
    assert 0 < late["dashboard"]["findings"] <= 40
    assert counts["finding"] < 4 * day["steps"] / 1_800 + 50
    # About a kilobyte a minute for each kind of record; a day fits on any disk.
    assert megabytes < 2.0 * hours + 2.0
