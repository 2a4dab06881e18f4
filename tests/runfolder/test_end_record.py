"""A run with an end record has ended, even if its run.json says otherwise."""

import json
import os
import time
from dataclasses import replace

import pytest

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main as telemetry
from toolkit.telemetry.runfolder.journal.end_record import settle_manifest, with_end_record
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import read_manifest, write_manifest
from toolkit.telemetry.runfolder.reader import last_step
from toolkit.telemetry.runfolder.status import work_out_status
from toolkit.telemetry.runs.sources.local_store import LocalStore


@pytest.fixture
def run(tmp_path):
    """A stopped run of a process that is gone, whose run.json says `running`: its end was cut short."""
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
        for step in range(20):
            log.log_step(step, train_loss=1.0)
        log.close("stopped")
    folder = tmp_path / "run"
    manifest = read_manifest(folder)
    unended = {"status": "running", "reason": None, "ended": None}
    write_manifest(folder, manifest.with_latest(**unended, pid=2**22 + 1, pid_started=1))
    return folder


def append(run, line):
    with (run / METRICS_JSONL).open("ab") as file:
        file.write(line + b"\n")


def test_the_end_is_taken_from_the_records_also_where_others_follow_it(run):
    for follows in (
        b"",
        b'{"event":"error","seq":900,"session":1,"time":1.0,"source":"telemetry"}',
        b"half a li",
    ):
        append(run, follows)
        manifest = with_end_record(read_manifest(run), run)

        assert (manifest.latest.status, manifest.latest.reason) == ("stopped", "stopped")
        assert manifest.latest.ended == pytest.approx(time.time(), abs=100)
        assert work_out_status(manifest, time.time()).name == "stopped"


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"step","seq":900,"session":2,"time":1.0,"global_step":1}',
        b'{"event":"end","seq":900,"session":2,"time":1.0,"status":"failed"}',
        b'{"event":"end","seq":900,"session":1,"time":1.0,"status":"<b>odd</b>"}',
        b'{"event":"end","seq":900,"session":1,"time":1.0}',
    ],
)
def test_an_end_of_another_session_and_one_without_a_status_are_ignored(run, line):
    append(run, line)

    assert with_end_record(read_manifest(run), run).latest.status == "running"


def test_a_run_with_a_final_status_is_not_read(run):
    manifest = read_manifest(run).with_latest(status="failed")
    (run / METRICS_JSONL).unlink()

    assert with_end_record(manifest, run) is manifest
    assert with_end_record(read_manifest(run), run).latest.status == "running", (
        "nor is a missing file an error"
    )


def test_every_reader_and_repair_believe_it(run, capsys):
    (card,) = LocalStore([run.parent], cache_dir=None).list_runs().cards
    assert (card.status.name, card.status.sure) == ("stopped", True)

    assert telemetry(["show", str(run)]) == 0
    assert "stopped" in capsys.readouterr().out

    os.chmod(run / MANIFEST, 0o640)
    assert telemetry(["repair", str(run)]) == 0
    assert "run.json now says stopped" in capsys.readouterr().out
    assert read_manifest(run).latest.status == "stopped"
    assert (run / MANIFEST).stat().st_mode & 0o777 == 0o640
    assert settle_manifest(run) is None, "it says so already"


def test_a_killed_run_without_an_end_is_lost_and_read_once(run, monkeypatch):
    append(run, b'{"event":"step","seq":900,"session":1,"time":1.0,"global_step":1}')
    runs = LocalStore([run.parent], cache_dir=None)
    assert [card.status.name for card in runs.list_runs().cards] == ["lost"]

    monkeypatch.setattr(
        "toolkit.telemetry.runfolder.listed_run.with_end_record", lambda *_: pytest.fail("read again")
    )
    assert [card.status.name for card in runs.list_runs().cards] == ["lost"]


def test_a_killed_run_has_the_numbers_of_its_records_not_of_its_last_heartbeat(run, capsys):
    append(run, b'{"event":"step","seq":900,"session":1,"time":1.0,"global_step":173,"train_loss":0.25}')
    # Evaluations may be counted by epochs.
    append(run, b'{"event":"eval","seq":901,"session":1,"time":1.0,"global_step":2,"val_loss":0.5}')
    manifest = read_manifest(run)
    old = manifest.evaluations["train_loss"]._replace(last=9.0, last_step=3)
    write_manifest(
        run,
        replace(
            manifest,
            heartbeat=replace(manifest.heartbeat, seq=3, global_step=3),
            summary={**manifest.summary, "train_loss": 9.0},
            evaluations={"train_loss": old},
        ),
    )

    def numbers():
        assert telemetry(["ls", str(run), "--json"]) == 0
        [listed] = json.loads(capsys.readouterr().out)["runs"]
        (card,) = LocalStore([run.parent], cache_dir=None).list_runs().cards
        evaluation = card.evaluations["train_loss"]
        return (listed["step"], listed["loss"]), (card.step, card.loss), (evaluation.last, evaluation.best)

    assert numbers() == ((173, 0.25), (173, 0.25), (0.25, 0.25))
    assert telemetry(["repair", str(run)]) == 0
    capsys.readouterr()
    settled = read_manifest(run)
    assert (settled.heartbeat.seq, settled.heartbeat.global_step, settled.summary["train_loss"]) == (
        901,
        173,
        0.25,
    )
    assert last_step(run / METRICS_JSONL) == 173
    assert settled.evaluations["train_loss"].best_step == 173
    assert numbers() == ((173, 0.25), (173, 0.25), (0.25, 0.25))


@pytest.mark.parametrize(
    ("incomplete", "left"), [("metrics.csv", ""), ("metrics.csv, disk", "; incomplete: disk")]
)
def test_a_table_that_was_rebuilt_is_no_longer_incomplete(run, incomplete, left):
    manifest = with_end_record(read_manifest(run), run)
    write_manifest(run, manifest.with_latest(reason=f"exit; incomplete: {incomplete}"))

    assert telemetry(["repair", str(run)]) == 0
    assert read_manifest(run).latest.reason == f"exit{left}"
