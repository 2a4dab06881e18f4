"""One run with very many records, from its first to the session after its kill."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lengths import in_make_faults, longer
from tests.load import long_run
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.control import control_file, requests
from toolkit.telemetry.logger.control.control_file import was_answered
from toolkit.telemetry.runfolder.manifest import MAX_MANIFEST_BYTES, Session, read_manifest, write_manifest

RECORDS = longer(20_000, 1_000_000)


@in_make_faults
@pytest.mark.slow
@pytest.mark.timeout(longer(240, 3000))
def test_a_run_of_very_many_records_is_logged_read_killed_repaired_and_resumed(tmp_path, record_property):
    found = long_run.measure(tmp_path, RECORDS)

    used, points = found["use"], found["logging"]["points"]
    quarter = points[len(points) // 4]
    grown_mb = points[-1]["rss_mb"] - quarter["rss_mb"]
    took = used["took"]
    record_property(
        "measured",
        f"{RECORDS:,} steps: 0 lost in a kill, memory {grown_mb:+.1f} MB from a quarter on; read in "
        f"{took['read_cpu_s']:.1f} s, repaired in {took['repair_cpu_s']:.1f} s, examined in "
        f"{took['doctor_cpu_s']:.1f} s, all charts' data in {took['load_cpu_s']:.1f} s CPU",
    )
    # Everything is there once, in its order, whoever counts.
    assert used["counted"]["steps"] == RECORDS
    assert (used["counted"]["bad"], used["counted"]["out_of_order"]) == (0, 0)
    records = used["counted"]["records"]
    assert (used["dashboard_records"], used["doctor_records"]) == (records, records)
    assert used["rows"] == used["counted"]["with_rows"] >= RECORDS
    assert used["points_in_chart"] == RECORDS
    assert used["points_drawn"] < 5_000
    # The next session goes on in the same folder, and seq with it.
    assert used["resumed_in_place"] == 1
    assert used["after_resume"]["out_of_order"] == 0
    assert used["after_resume"]["steps"] == RECORDS + 1
    assert used["left_over"] == 0
    # Memory for records while the disk takes none is 32 MB; nothing else grows with them.
    assert grown_mb < 40.0
    # One or two may be open for the time that a thread looks at something.
    assert points[-1]["files"] <= quarter["files"] + 2
    assert points[-1]["threads"] <= quarter["threads"] + 1
    # A million records with their columns: a hundred bytes and some for each that the dashboard holds.
    assert used["held"]["load_mb"] - used["held"]["read_mb"] < 150 + 400e-6 * RECORDS


@pytest.mark.parametrize("form", [True, "all"])
def test_the_end_of_a_run_does_not_rewrite_its_whole_table(tmp_path, form):
    # A million rows would take longer than close() may wait, and the table would be left without its end.
    # A finding, of a machine that becomes slow, say, has columns of its own and comes at any time.
    options = {"system": False, "diagnostics": False, "close_timeout": 60.0}
    log = TelemetryLogger("r", log_dir=tmp_path, log_every=1, csv=form, **options)
    for step in range(500):
        log.log_step(step, train_loss=1.0 / (1 + step))
    log.log_checkpoint(499, tmp_path)
    table = log.run_folder / "metrics.csv"
    # What is found out about the machine comes a second later, with columns of its own.
    records = log.run_folder / "metrics.jsonl"
    wait_until(
        lambda: (
            log.flush(60.0)
            and b'"environment"' in records.read_bytes()
            and (form != "all" or b"\nenvironment," in table.read_bytes())
        )
    )
    log.flush(60.0)
    before = os.stat(table)

    log.close()

    after = os.stat(table)
    assert after.st_ino == before.st_ino
    assert after.st_size > before.st_size
    assert table.read_text().splitlines()[-1].startswith("end,")


def test_a_request_to_a_long_run_has_none_of_its_records_parsed(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    line = b'{"event":"step","time":1.0,"seq":%d,"session":1,"global_step":%d,"train_loss":0.5}\n'
    path.write_bytes(b"".join(line % (seq, seq) for seq in range(20_000)))
    parsed = []
    parse = control_file.parse_line
    monkeypatch.setattr(control_file, "parse_line", lambda *place: parsed.append(place) or parse(*place))

    assert not was_answered(path, "0123456789abcdef")
    assert parsed == []

    with path.open("ab") as file:
        file.write(b'{"event":"control_change","time":1.0,"seq":20000,"session":1,"id":"0123456789abcdef"}\n')
    assert was_answered(path, "0123456789abcdef")
    assert len(parsed) == 1
    # What the session itself has answered its poller knows: only earlier records are looked at.
    monkeypatch.setattr(control_file, "read_block", None)
    assert not was_answered(path, "0123456789abcdef", upto=0)


def test_a_run_restarted_hundreds_of_times_can_still_be_read_and_resumed(tmp_path):
    with TelemetryLogger("r", log_dir=tmp_path, system=False) as log:
        log.log_step(1, train_loss=1.0)
    folder = log.run_folder
    manifest = read_manifest(folder)
    ended = [
        Session(session=n, started=1e9 + n, pid=1, ended=1e9 + n + 1, status="failed", reason="failed")
        for n in range(1, 1_001)
    ]
    from dataclasses import replace

    write_manifest(folder, replace(manifest, sessions=tuple(ended)))
    numbers = []
    for _ in range(2):
        with TelemetryLogger("r", log_dir=tmp_path, system=False, resume=True) as log:
            log.log_step(2, train_loss=1.0)
        assert log.run_folder == folder
        numbers.append(read_manifest(folder).sessions[-1].session)

    manifest = read_manifest(folder)
    assert numbers == [1_001, 1_002]
    assert len(manifest.sessions) == 500
    assert [session.session for session in manifest.sessions] == list(range(503, 1_003))
    assert (Path(folder) / "run.json").stat().st_size < MAX_MANIFEST_BYTES / 2


def test_requests_that_come_for_days_are_not_all_remembered():
    newest = requests.Newest()
    for number in range(3 * requests._MAX_REMEMBERED):
        newest.add(f"request-{number}")

    assert f"request-{3 * requests._MAX_REMEMBERED - 1}" in newest
    assert "request-0" not in newest
    assert len(newest._texts) == requests._MAX_REMEMBERED
