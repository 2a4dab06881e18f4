from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lengths import in_make_faults
from tests.records import read_records
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.timing.history import read_run_time

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).parent / "programs" / "train_for_the_ledger.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that was killed at step 50, and again at 75 after it had resumed from 40, and then finished."""
    log_dir = tmp_path_factory.mktemp("logs")
    for first, last, how in ((0, 50, "killed"), (40, 75, "killed"), (60, 80, "finished")):
        command = [sys.executable, PROGRAM, str(log_dir), str(first), str(last), how]
        subprocess.run(command, cwd=ROOT, timeout=100, capture_output=True)
    return log_dir / "run"


def total(records, field, steps=None):
    return sum(
        record.get(field, 0.0) for record in records if steps is None or record.get("global_step") in steps
    )


@in_make_faults
def test_the_ledger_of_a_run_that_was_killed_twice_is_what_its_records_say(folder):
    records = read_records(folder)
    found = read_run_time(folder)
    ledger = found.ledger
    seconds = {line.entry: line.seconds for line in ledger.lines}
    spans = [record for record in records if record["event"] == "span"]
    # By their times: a thread that is held up between the two may write a record behind a later one.
    newest = [
        max(
            (record for record in records if record["session"] == session),
            key=lambda record: record["elapsed"],
        )
        for session in (1, 2, 3)
    ]
    # Of a session that was killed and resumed nothing is known after its last record, or a heartbeat that came later.
    ended = [session.ended for session in read_manifest(folder).sessions]
    after = [max(0.0, end - record["time"]) for end, record in zip(ended[:2], newest[:2], strict=True)]

    assert found.status == "finished"
    assert records[-1]["event"] == "end"
    assert ledger.wall_s == pytest.approx(sum(record["elapsed"] for record in newest) + sum(after), abs=1e-5)
    assert sum(seconds.values()) == pytest.approx(ledger.wall_s, abs=1e-9)
    assert seconds["validation"] == pytest.approx(
        sum(span["duration"] for span in spans if span["name"] == "validation_loop"), rel=0.01
    )
    assert seconds["startup"] >= sum(span["duration"] for span in spans if span["name"] == "model_init")
    # Steps 41 to 50 of the first session and 61 to 75 of the second were made again.
    lost = [
        total([record for record in records if record["session"] == session], field, steps)
        # A slow machine has records of the ledger's own between those of the steps.
        for session, steps in ((1, range(41, 51)), (2, range(61, 76)))
        for field in ("ledger/training", "ledger/data_wait")
    ]
    assert seconds["redone"] == pytest.approx(sum(lost), rel=0.05)
    assert seconds["training"] + seconds["data_wait"] + seconds["redone"] == pytest.approx(
        total(records, "ledger/training") + total(records, "ledger/data_wait"), rel=0.01
    )
    assert not any(line.inferred for line in ledger.lines)
