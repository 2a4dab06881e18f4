"""A disk that does not answer: no call waits for it, the end does not either, and nothing is lost."""

from __future__ import annotations

import time

import pytest

from tests.faults.children import LONGEST_PAUSE_S, PROGRAMS, ROOT, repair
from tests.faults.crash_checks import whole_run
from tests.fork_server import run_python
from tests.lengths import longer
from tests.records import with_event
from toolkit.telemetry.runfolder.manifest import read_manifest

HANG = PROGRAMS / "hang_in_writes.py"
FIT_INTO_THE_JOURNAL = 3_000
STEPS = longer(FIT_INTO_THE_JOURNAL, 20_000)
CLOSE_TIMEOUT_S = longer(0.5, 1.5)
AT_MOST_S = CLOSE_TIMEOUT_S + longer(LONGEST_PAUSE_S, 1.0)
MOST_TRIES = 4
"""An end that waits for the disk takes for ever; a machine that is busy elsewhere holds up one of several."""


@pytest.mark.parametrize("hung", ["records", "folder"], ids=["the record file", "the whole folder"])
def test_a_hung_disk_holds_up_neither_the_loop_nor_its_end_and_repair_finds_everything(tmp_path, start, hung):
    closing = []
    while min(closing, default=AT_MOST_S) >= AT_MOST_S and len(closing) < MOST_TRIES:
        log_dir = tmp_path / str(len(closing))
        ended = start(HANG, log_dir, CLOSE_TIMEOUT_S, STEPS, hung, "close").end(code=7)
        repair(log_dir / "run")

        assert ended.number("slowest") < LONGEST_PAUSE_S
        assert "telemetry repair" in ended.err
        assert ended.number("on_disk") < STEPS, "the disk was not hung after all"
        records = whole_run(log_dir / "run", steps=range(STEPS))
        assert not with_event(records, "lost")
        assert with_event(records, "end")
        closing.append(ended.number("closing"))
    assert min(closing) < AT_MOST_S


def test_a_hang_that_passes_leaves_nothing_to_repair(tmp_path, start):
    child = start(HANG, tmp_path, 60, STEPS, "records", "answer")
    ended = child.end(code=7)

    assert "telemetry repair" not in ended.err
    records = whole_run(tmp_path / "run", steps=range(STEPS))
    assert not with_event(records, "lost")
    assert read_manifest(tmp_path / "run").latest.reason == "finished"


def test_a_write_that_arrives_after_the_end_was_given_up_comes_once(tmp_path, start):
    child = start(HANG, tmp_path, CLOSE_TIMEOUT_S, STEPS, "records", "answer_late")
    child.wait_for_line("closed")
    meanwhile = run_python(
        ["-m", "toolkit.telemetry.cli", "repair", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    child.tell("answer")
    child.end(code=7)
    repair(tmp_path / "run")

    assert "a running process" in meanwhile.stderr, "what the disk still holds may arrive at any time"
    whole_run(tmp_path / "run", steps=range(STEPS))


def test_a_process_killed_in_the_middle_of_a_hang_loses_nothing_that_fits_into_the_journal(tmp_path, start):
    child = start(HANG, tmp_path, CLOSE_TIMEOUT_S, FIT_INTO_THE_JOURNAL, "folder", "stay")
    child.wait_for_line("slowest")
    child.kill()
    repair(tmp_path / "run")

    whole_run(tmp_path / "run", steps=range(FIT_INTO_THE_JOURNAL))


def test_a_checkpoint_whose_disk_hangs_is_recorded_without_waiting(tmp_path, start):
    ended = start(
        """
        stat = os.stat

        def hanging_stat(path, *args, **kwargs):
            if str(path).endswith("model.safetensors"):
                threading.Event().wait()
            return stat(path, *args, **kwargs)

        os.stat = hanging_stat
        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
        call = threading.Thread(target=log.log_checkpoint, args=(1, "/far/away/model.safetensors"), daemon=True)
        call.start()
        call.join(60)
        print(f"waits={int(call.is_alive())}")
        log.close()
        sys.exit(7)
        """,
        tmp_path,
    ).end(code=7)

    assert not ended.number("waits")
    (checkpoint,) = with_event(whole_run(tmp_path / "run"), "checkpoint")
    assert checkpoint["checkpoint_path"] == "/far/away/model.safetensors"


@pytest.mark.parametrize("ending", ["sys.exit(7)", "os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)"])
def test_all_runs_of_a_process_share_the_time_for_their_end(tmp_path, start, ending):
    child = start(
        """
        write, is_dead = os.write, threading.Event()

        def hanging_write(descriptor, data):
            if is_dead.is_set() and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".jsonl"):
                threading.Event().wait()
            return write(descriptor, data)

        os.write = hanging_write
        logs = [TelemetryLogger("run", log_dir=sys.argv[1], close_timeout=1.0, system=False) for _ in range(60)]
        is_dead.set()
        for log in logs:
            log.log_step(0, train_loss=1.0)
        print("ending", flush=True)
        """
        + ending,
        tmp_path,
    )
    child.wait_for_line("ending")
    began = time.monotonic()
    ended = child.end()

    assert ended.code in (7, -15), ended.err
    assert time.monotonic() - began < 45, "one after the other they would take a minute"
    repair(tmp_path / "run-15")
    whole_run(tmp_path / "run-15", steps=range(1))


@pytest.mark.parametrize("operation", ["write", "any"])
def test_a_file_system_that_hangs_delays_no_one(start, faulty_disk, operation, record_property):
    slowest, closing = [], []
    while min(closing, default=AT_MOST_S) >= AT_MOST_S and len(closing) < MOST_TRIES:
        log_dir = faulty_disk.mounted / str(len(closing))
        held_up = _logs_to_a_file_system_that_hangs(start, faulty_disk, log_dir, operation)
        slowest.append(held_up[0])
        closing.append(held_up[1])
    assert max(slowest) < LONGEST_PAUSE_S
    assert min(closing) < AT_MOST_S
    record_property(
        "measured",
        f"{STEPS:,} calls, the slowest {1000 * max(slowest):.1f} ms; "
        f"close after {min(closing):.1f} s of the {CLOSE_TIMEOUT_S} allowed; 0 lost",
    )


def _logs_to_a_file_system_that_hangs(start, faulty_disk, log_dir, operation):
    """Return the seconds of the slowest call and of the end of a run, all of which is there afterwards."""
    child = start(
        """
        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, close_timeout=float(sys.argv[2]))
        log.log_event("before")
        log.flush(60)
        print("is flushed", flush=True)
        sys.stdin.readline()
        slowest = SlowestCall()
        for step in range(int(sys.argv[3])):
            slowest.of(log.log_step, step, train_loss=1.0, lr=1e-4, grad_norm=0.5)
        print(f"slowest={slowest.seconds}", flush=True)
        began = time.monotonic()
        log.close()
        print(f"closing={time.monotonic() - began}", flush=True)
        sys.exit(7)
        """,
        *(log_dir, CLOSE_TIMEOUT_S, STEPS),
    )
    # Not a word of the folder's name, which is said before it.
    child.wait_for_line("is flushed")
    faulty_disk.fail({"op": operation, "do": "hang"})
    child.tell("go")
    slowest = float(child.wait_for_line("slowest=").partition("=")[2])
    closing = float(child.wait_for_line("closing=").partition("=")[2])
    # The kernel keeps a process until the write it is in has ended: nothing in the process can change that.
    faulty_disk.heal()
    child.end(code=7)
    repair(log_dir / "run")

    records = whole_run(log_dir / "run", steps=range(STEPS))
    assert not with_event(records, "lost")
    return slowest, closing


def test_the_hung_disk_of_another_killed_run_does_not_concern_this_one(tmp_path, start, faulty_disk):
    mounted = faulty_disk.mounted
    killed = start(
        """
        log = TelemetryLogger("killed", log_dir=sys.argv[1], log_every=1, flush_interval=60)
        for step in range(100):
            log.log_step(step, train_loss=1.0)
        print("logged", flush=True)
        signal.pause()
        """,
        mounted,
    )
    killed.wait_for_line("logged")
    killed.kill()
    try:
        child = start(
            """
            import toolkit.telemetry.logger.session.live_run
            print("ready", flush=True)
            sys.stdin.readline()
            log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
            log.log_step(0, train_loss=1.0)
            time.sleep(1.5)  # by then it tries to recover what other runs left behind
            with open(log.run_folder / "control.json", "w") as file:
                file.write('{"log_every": 7}')
            os.chmod(log.run_folder / "control.json", 0o600)
            deadline = time.monotonic() + 60
            while log.log_every != 7 and time.monotonic() < deadline:
                time.sleep(0.05)
                log.log_step(1, train_loss=1.0)
            print(f"log_every={log.log_every}")
            log.close()
            """,
            tmp_path,
        )
        # No longer than needed: others who look for journals of theirs meanwhile come to this disk as well.
        child.wait_for_line("ready")
        faulty_disk.fail({"op": "any", "do": "hang"})
        child.tell("go")
        ended = child.end(code=0)
    finally:
        faulty_disk.heal()
    repair(mounted / "killed")

    assert ended.number("log_every") == 7, "its control file is still looked at"
    whole_run(mounted / "killed", steps=range(100))
