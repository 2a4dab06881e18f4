"""A clock that someone sets, and a process that is stopped, killed or ended: order and status stay right."""

from __future__ import annotations

import signal
import time

from tests.faults.crash_checks import whole_run
from tests.lengths import longer
from tests.records import with_event
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.status import GIVEN_UP_S, HEARTBEAT_TIMEOUT_S, work_out_status

YEAR_S = 365 * 24 * 3600.0


def test_a_clock_that_is_set_forth_and_back_moves_no_record_and_no_duration(tmp_path):
    clock = ManualClock()
    began = clock.wall()
    jumps = {100: YEAR_S, 200: -YEAR_S, 300: -3600.0, 400: 3600.0}
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, clock=clock, system=False) as log:
        for step in range(500):
            clock.advance(0.25)
            if step in jumps:
                clock.set_wall(began + jumps[step])
            log.log_step(step, train_loss=1.0)

    records = whole_run(tmp_path / "run", steps=range(500))
    steps = with_event(records, "step")
    assert [step["global_step"] for step in steps] == list(range(500)), "the order is that of the calls"
    # What another thread says, such as a finding, is stamped before its turn comes.
    elapsed = [record["elapsed"] for record in records if record["event"] in ("start", "step", "end")]
    assert elapsed == sorted(elapsed)
    assert [step["elapsed"] for step in steps] == [0.25 * (step + 1) for step in range(500)]
    assert {step["sec_per_step"] for step in steps[1:]} == {0.25}
    assert steps[100]["time"] == began + YEAR_S, "the time is that of the clock one had"
    assert steps[200]["time"] == began - YEAR_S


def test_a_run_that_was_started_in_the_future_can_be_resumed_and_keeps_counting(tmp_path):
    clock = ManualClock(wall=time.time() + YEAR_S)
    for wall in (clock.wall(), clock.wall() - 2 * YEAR_S):
        clock.set_wall(wall)
        with TelemetryLogger(
            "run", log_dir=tmp_path, clock=clock, resume=True, log_every=1, system=False
        ) as log:
            log.log_step(0, train_loss=1.0)

    records = whole_run(tmp_path / "run")
    assert [(step["session"], step["global_step"]) for step in with_event(records, "step")] == [
        (1, 0),
        (2, 0),
    ]


LOGS_UNTIL_TOLD = """
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False)
reported = []
threading.Thread(target=lambda: reported.append(sys.stdin.readline()), daemon=True).start()
acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
step = 0
while not reported:
    log.log_step(step, train_loss=1.0)
    acknowledged.set(step)
    step += 1
    time.sleep(0.002)
log.close()
"""


def test_the_status_follows_a_run_through_a_stop_and_its_end(tmp_path, start):
    child = start(LOGS_UNTIL_TOLD, tmp_path)
    child.wait_for_step(10)

    def status(in_s=0.0):
        found = work_out_status(read_manifest(tmp_path / "run"), time.time() + in_s)
        assert found.sure, found
        return found.name

    while_it_runs = status()
    child.process.send_signal(signal.SIGSTOP)
    stopped_at = child.acknowledged
    time.sleep(longer(0.2, HEARTBEAT_TIMEOUT_S + 1))
    stopped, long_stopped = status(longer(HEARTBEAT_TIMEOUT_S + 10, 0.0)), status(10 * GIVEN_UP_S)
    child.process.send_signal(signal.SIGCONT)
    child.wait_for_step(child.acknowledged + 100)
    again = status()
    assert child.end(line="end").code == 0
    at_the_end, long_after = status(), status(YEAR_S)

    assert while_it_runs == "running"
    assert stopped == long_stopped == "stalled", "its process lives: it may go on"
    assert again == "running"
    assert at_the_end == long_after == "finished"
    assert child.acknowledged > stopped_at + 50
    records = whole_run(tmp_path / "run", steps=range(child.acknowledged + 1))
    assert not with_event(records, "lost")


def test_a_killed_run_is_lost_at_once_and_not_only_when_its_last_sign_of_life_is_old(tmp_path, start):
    child = start(LOGS_UNTIL_TOLD, tmp_path)
    child.wait_for_step(10)
    child.kill()

    status = work_out_status(read_manifest(tmp_path / "run"), time.time())

    assert (status.name, status.sure) == ("lost", True)
    assert str(child.process.pid) in status.why
