from __future__ import annotations

import json
import os
import random
import time
from dataclasses import asdict

from toolkit.telemetry.diagnostics.ending import Endings
from toolkit.telemetry.runfolder.manifest import Heartbeat, Manifest, Session
from toolkit.telemetry.runfolder.process import boot_id, host_name, process_started

STEP = {"event": "step", "session": 1, "global_step": 7}
ERROR = {
    "event": "error",
    "session": 1,
    "seq": 3,
    "time": 10.0,
    "type": "ValueError",
    "message": "ValueError: x",
    "stack": ["train.py:1 in <module>", "train.py:9 in load"],
}


def manifest(*, status="running", age_s=0.0, session=1):
    """Return the manifest of a run of this very process whose last sign of life is `age_s` old."""
    began = time.time() - age_s
    return Manifest(
        run_id="x",
        name="r",
        display_name="r",
        created=began,
        sessions=(
            Session(
                session=session,
                started=began,
                pid=os.getpid(),
                pid_started=process_started(os.getpid()),
                host=host_name(),
                boot_id=boot_id(),
                status=status,
            ),
        ),
        heartbeat=Heartbeat(time=began),
    )


def ending(*records, of=None, rank_2=()):
    endings = Endings()
    endings.take(records)
    endings.take(rank_2, 2)
    return endings.ending(of, time.time())


def test_a_run_that_hangs_says_where():
    spans = [{"event": "span_start", "session": 1, "id": str(n), "name": name} for n, name in enumerate("ab")]
    ended = {"event": "span", "session": 1, "id": "0", "name": "a"}
    hang = {
        "event": "finding",
        "session": 1,
        "kind": "hang",
        "id": "h",
        "state": "open",
        "message": "no step",
    }
    found = ending(STEP, *spans, ended, hang, of=manifest(age_s=400.0))

    assert (found.status, found.is_bad) == ("stalled", True)
    assert (found.inside, found.hang) == (("b",), "no step")
    over = ending(STEP, hang, {**hang, "state": "resolved"}, of=manifest(age_s=400.0))
    assert over.hang is None


def test_an_error_that_steps_came_after_did_not_end_a_lost_run():
    lost = manifest(status="lost")

    assert ending(ERROR, STEP, of=lost).error is None
    assert ending(STEP, ERROR, of=lost).error.where == "train.py:9 in load"


def test_a_session_after_a_failure_has_its_own_ending():
    failed = {"event": "end", "session": 1, "status": "failed", "reason": "failed"}
    resumed = [{**STEP, "session": 2}, {"event": "end", "session": 2, "status": "finished"}]
    found = ending(STEP, ERROR, failed, *resumed, of=manifest(status="finished", session=2))

    assert (found.status, found.is_bad, found.error) == ("finished", False, None)


def test_an_end_record_of_an_earlier_session_is_not_this_ones():
    finished = {"event": "end", "session": 1, "status": "finished"}

    assert ending(STEP, finished, of=manifest(session=2, age_s=400.0)).status == "stalled"


KEYS = ("event", "session", "id", "seq", "name", "status", "records", "errors", "spans", "stack", "frames")
EVENTS = ("step", "error", "span", "span_start", "finding", "lost", "end")
VALUES = (None, True, 1, -1.5, "failed", "hang", [], [None], [{}], {}, {"count": 1}, *EVENTS)


def test_any_record_is_taken():
    dice = random.Random(0)
    endings = Endings()
    for rank in (0, 1):
        for _ in range(1_000):
            record = {key: dice.choice(VALUES) for key in KEYS if dice.random() < 0.7}
            if dice.random() < 0.7:
                record["event"] = dice.choice(EVENTS)
            endings.take([record], rank)
            endings.ending(manifest(status="failed"), time.time())

    assert all(json.loads(json.dumps(asdict(error)))["type"] for error in endings.errors())
