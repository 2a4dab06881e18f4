"""The ways a training process ends, and what its run folder says of each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from tests.faults.children import PREAMBLE, PROGRAMS, ROOT, repair
from tests.faults.crash_checks import assert_nothing_is_missing, assert_steps, whole_run
from tests.lengths import longer
from tests.records import read_records, with_event
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.status import work_out_status

LOGS_500_STEPS = """
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False)
log.log_start()
for step in range(500):
    log.log_step(step, train_loss=1.0)
"""

LOGS_500_STEPS_IN_A_BLOCK = """
with TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False) as log:
    log.log_start()
    for step in range(500):
        log.log_step(step, train_loss=1.0)
"""


@pytest.mark.parametrize(
    ("source", "code", "status", "reason"),
    [
        pytest.param(LOGS_500_STEPS, 0, "finished", "exit", id="the script is over"),
        pytest.param(
            LOGS_500_STEPS + "del log", 0, "finished", "exit", id="no one holds the logger any more"
        ),
        pytest.param(LOGS_500_STEPS + "sys.exit(0)", 0, "finished", "exit", id="sys.exit(0)"),
        pytest.param(LOGS_500_STEPS + "raise KeyboardInterrupt", -2, "stopped", "interrupted", id="Ctrl-C"),
        pytest.param(LOGS_500_STEPS + "log.close()", 0, "finished", "finished", id="close"),
        pytest.param(LOGS_500_STEPS + "log.close('stopped')", 0, "stopped", "stopped", id="close, stopped"),
        pytest.param(LOGS_500_STEPS_IN_A_BLOCK, 0, "finished", "finished", id="a block is left"),
        pytest.param(
            LOGS_500_STEPS_IN_A_BLOCK + "    sys.exit()", 0, "finished", "finished", id="sys.exit in a block"
        ),
        pytest.param(
            LOGS_500_STEPS_IN_A_BLOCK + "    1 / 0", 1, "failed", "failed", id="an exception in a block"
        ),
        pytest.param(
            "class TrialPruned(Exception): pass\ntry:"
            + textwrap.indent(LOGS_500_STEPS_IN_A_BLOCK + "    raise TrialPruned", " ")
            + "\nexcept TrialPruned: pass",
            *(0, "stopped", "pruned"),
            id="a trial that Optuna prunes",
        ),
        pytest.param(
            LOGS_500_STEPS_IN_A_BLOCK + "    os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
            *(-2, "stopped", "interrupted"),
            id="Ctrl-C in a block",
        ),
    ],
)
def test_each_end_is_recorded_and_the_exit_code_stays(tmp_path, start, source, code, status, reason):
    ended = start(source, tmp_path).end()

    assert ended.code == code, ended.err
    records = whole_run(tmp_path / "run", steps=range(500))
    (end,) = with_event(records, "end")
    assert records[-1] == end
    assert (end["status"], end["reason"]) == (status, reason)
    assert end["global_step"] == 499
    assert end["records"] == len(records)
    errors = with_event(records, "error")
    assert len(errors) == (status == "failed")
    if code == 1:
        assert errors[0]["type"] == "ZeroDivisionError"
        assert "ZeroDivisionError: division by zero" in ended.err, "the traceback is printed as ever"
    worked_out = work_out_status(read_manifest(tmp_path / "run"), time.time())
    assert worked_out.name == status
    assert worked_out.sure


def test_the_exit_code_of_a_ctrl_c_stays_where_the_end_imports_something(tmp_path):
    source = (
        PREAMBLE + LOGS_500_STEPS.replace("sys.argv[1]", repr(str(tmp_path))) + "\nraise KeyboardInterrupt\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=200,
    )

    assert ended.returncode == -signal.SIGINT


@pytest.mark.parametrize("console", [("-i",), ("-c", "import code; code.interact()")])
def test_an_exception_at_a_prompt_ends_no_run(tmp_path, console):
    # A cell of a notebook is run like a line of `code.interact`.
    source = PREAMBLE + LOGS_500_STEPS.replace("sys.argv[1]", repr(str(tmp_path))) + "\nno_such_name\n"
    ended = subprocess.run(
        [sys.executable, "-q", *console],
        input=source,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        timeout=200,
    )

    assert "NameError" in ended.stderr
    records = whole_run(tmp_path / "run", steps=range(500))
    (end,) = with_event(records, "end")
    assert (end["status"], end["reason"]) == ("finished", "exit")
    assert not with_event(records, "error")


@pytest.mark.parametrize(
    ("last_words", "code"),
    [
        pytest.param(
            # Jobs that a shell starts in the background ignore it.
            "signal.signal(signal.SIGQUIT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGQUIT)",
            -3,
            id="SIGQUIT",
        ),
        pytest.param(
            "signal.signal(signal.SIGTERM, lambda *_: os._exit(9)); os.kill(os.getpid(), signal.SIGTERM)",
            9,
            id="a handler of the script that ends the process",
        ),
        pytest.param("os._exit(5)", 5, id="os._exit"),
        pytest.param("os.abort()", -6, id="abort"),
        pytest.param("import ctypes; ctypes.string_at(0)", -11, id="a segmentation fault"),
        pytest.param("os.execv('/bin/true', ['true'])", 0, id="exec of another program"),
    ],
)
def test_an_end_without_warning_loses_nothing_after_repair_and_counts_as_lost(
    tmp_path, start, last_words, code
):
    ended = start(LOGS_500_STEPS + last_words + "\ntime.sleep(5)", tmp_path).end()
    status = work_out_status(read_manifest(tmp_path / "run"), time.time())
    repair(tmp_path / "run")

    assert ended.code == code, ended.err
    records = whole_run(tmp_path / "run", steps=range(500))
    assert not with_event(records, "end")
    assert (status.name, status.sure) == ("lost", True)


def test_the_first_process_of_a_container_writes_its_end_before_it_is_killed(tmp_path):
    # What `docker stop` does: SIGTERM, which such a process does not die of by itself, and after a while SIGKILL.
    if subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode:
        pytest.skip("no process namespace can be made here")
    script = tmp_path / "train.py"
    wait = "print('waiting', os.getpid(), flush=True)\nwhile True: time.sleep(0.1)"
    script.write_text(PREAMBLE + LOGS_500_STEPS + wait)
    unshare = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-u", script, tmp_path],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    try:
        while (line := unshare.stdout.readline()) and not line.startswith("waiting"):
            pass
        assert line == "waiting 1\n"
        (container,) = psutil.Process(unshare.pid).children()
        container.send_signal(signal.SIGTERM)
        wait_until(lambda: read_manifest(tmp_path / "run").latest.status != "running")
        assert container.is_running(), "as without us"
        container.kill()
        unshare.wait(60)
    finally:
        unshare.kill()
        unshare.communicate()

    records = read_records(tmp_path / "run")
    assert_nothing_is_missing(records)
    assert_steps(records, range(500))
    (end,) = with_event(records, "end")
    assert (end["status"], end["signal"]) == ("stopped", "SIGTERM")


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), MemoryError()])
def test_an_exception_leaves_a_block_unchanged(tmp_path, error):
    with pytest.raises(type(error)) as caught, TelemetryLogger("run", log_dir=tmp_path, log_every=1):
        raise error

    assert caught.value is error
    assert error.__context__ is None
    assert error.__cause__ is None
    assert error.__traceback__.tb_next is None, "no frame of ours is in its traceback"


def test_what_threads_and_exit_handlers_log_after_the_end_is_said_once_and_declared_lost(tmp_path, start):
    ended = start(
        """
        import atexit
        from toolkit.telemetry.logger.writing import late_calls

        def is_being_written(*args, asked=late_calls.is_being_written, **within):
            answer = asked(*args, **within)
            # As on a busy machine: the script may be over before a thread has declared what it lost.
            time.sleep(0.2 * (threading.current_thread() is not threading.main_thread()))
            return answer

        late_calls.is_being_written = is_being_written
        atexit.register(lambda: log.log_event("too_late"))  # registered first, so called after the run has ended
        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
        atexit.register(lambda: log.log_event("in_time"))

        def log_for_ever():
            while True:
                log.log_event("daemon")
                time.sleep(0.0005)

        def log_on():
            time.sleep(0.3)
            for step in range(500):
                log.log_step(step, train_loss=1.0)

        threading.Thread(target=log_for_ever, daemon=True).start()
        threading.Thread(target=log_on).start()
        """,
        tmp_path,
    ).end(code=0)

    assert ended.err.count("was called after close()") == 1
    records = whole_run(tmp_path / "run", steps=range(500))
    assert len(with_event(records, "in_time")) == 1
    assert {record["reason"] for record in with_event(records, "lost")} == {"logged after close()"}
    assert not with_event(records, "too_late")


@pytest.mark.timeout(longer(240, 3_000))
def test_a_run_that_is_ended_from_everywhere_at_once_ends_once(tmp_path, start, record_property):
    ended = start(
        PROGRAMS / "end_from_everywhere.py",
        tmp_path / "logs",
        longer(24, 200),
    ).end(longer(200, 2_000))

    assert ended.code == 7, ended.err
    assert not ended.trouble
    assert not ended.number("came_back_early")
    for run in (tmp_path / "logs").iterdir():
        records = read_records(run)
        assert_nothing_is_missing(records)
        assert_steps(records, range(20))
        assert len(with_event(records, "end")) == 1
        assert records[-1]["event"] == "end"
    record_property(
        "measured", f"{longer(24, 200)} runs, each ended by 3 threads, a signal handler and the loop at once"
    )


def test_a_script_that_is_over_waits_for_a_thread_that_is_ending_its_run(tmp_path, start):
    start(
        """
        class Slow:
            name = "slow"

            def write(self, batch):
                if not log.is_live:
                    is_ending.set()
                    time.sleep(1.0)

            def close(self):
                pass

        is_ending = threading.Event()
        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False, sinks=[Slow()], close_timeout=30)
        for step in range(500):
            log.log_step(step, train_loss=1.0)
        threading.Thread(target=log.close, daemon=True).start()
        is_ending.wait(100)
        """,
        tmp_path,
    ).end(code=0)

    records = whole_run(tmp_path / "run", steps=range(500))
    assert [record["reason"] for record in with_event(records, "end")] == ["finished"]
    assert read_manifest(tmp_path / "run").latest.status == "finished"


@pytest.mark.parametrize(
    ("ends", "number", "status"),
    [
        pytest.param("raise", signal.SIGINT, "stopped", id="a second Ctrl-C at the exit"),
        pytest.param("close", signal.SIGINT, "finished", id="Ctrl-C in close"),
        pytest.param("close", signal.SIGUSR1, "finished", id="a handler that raises in close"),
        pytest.param("exit", signal.SIGINT, "failed", id="Ctrl-C in a block's end"),
    ],
)
def test_who_interrupts_the_end_of_a_run_waits_no_longer_and_finds_it_ended(
    tmp_path, start, ends, number, status
):
    child = start(PROGRAMS / "interrupted_while_closing.py", tmp_path, ends)
    child.wait_for_line("is being closed")
    child.process.send_signal(number)
    child.end(60)

    records = whole_run(tmp_path / "run", steps=range(500))
    (end,) = with_event(records, "end")
    assert end["status"] == status
    assert read_manifest(tmp_path / "run").latest.status == status


def test_an_end_that_is_interrupted_early_is_written_all_the_same(tmp_path, start):
    ended = start(
        PROGRAMS / "interrupt_the_end.py",
        tmp_path,
    ).end(code=0)

    assert ended.out.count("interrupted ") == 4
    runs = [path for path in tmp_path.iterdir() if path.name.startswith("run-")]
    assert len(runs) == 4
    for run in runs:
        records = whole_run(run)
        (end,) = with_event(records, "end")
        assert [record["global_step"] for record in with_event(records, "step")] == [0, 5, 8], (
            "the last ones, too"
        )
        assert (end["status"], read_manifest(run).latest.status) == ("finished", "finished")


@pytest.mark.parametrize("stdout", ["full", "closed", "a pipe no one reads"])
def test_a_standard_output_that_takes_nothing_does_not_stop_a_training(tmp_path, stdout):
    source = PREAMBLE + LOGS_500_STEPS + "log.close(); open(sys.argv[1] + '/result', 'w').write('trained')"
    read, write = os.pipe()
    os.close(read)
    target = os.open("/dev/full", os.O_WRONLY) if stdout == "full" else write
    ended = subprocess.run(
        [sys.executable, "-u", "-c", source, str(tmp_path)],
        stdout=None if stdout == "closed" else target,
        stderr=subprocess.PIPE,
        preexec_fn=(lambda: os.close(1)) if stdout == "closed" else None,
        cwd=ROOT,
        text=True,
        timeout=200,
    )
    for descriptor in {write, target}:
        os.close(descriptor)

    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "result").read_text() == "trained"
    whole_run(tmp_path / "run", steps=range(500))
