"""SIGTERM and SIGHUP end the runs and then the process, by Python's own handler and only where the script has none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.fork_server import run_python
from tests.lengths import in_make_faults
from tests.telemetry.logged import make_logger, read_records, records_of
from toolkit.telemetry.logger.errors.signals import SIGNALS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without signals")

NUMBERS = [signal.SIGTERM, signal.SIGHUP]


def handlers():
    return [signal.getsignal(number) for number in NUMBERS]


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """Every test begins with the default actions, whatever another file left open, and leaves them."""
    monkeypatch.setattr(SIGNALS, "_listeners", {})
    for number in NUMBERS:
        if is_ours(number):
            signal.signal(number, signal.SIG_DFL)
    before = handlers()
    yield
    assert handlers() == before


def is_ours(number=signal.SIGTERM):
    return signal.getsignal(number) is SIGNALS._handler


def test_getsignal_shows_the_handler_until_the_last_logger_is_closed(tmp_path):
    first, second = make_logger(tmp_path, "first"), make_logger(tmp_path, "second")
    assert [is_ours(number) for number in NUMBERS] == [True, True]
    assert signal.set_wakeup_fd(-1) == -1
    first.close()
    assert is_ours()
    second.close()

    assert handlers() == [signal.SIG_DFL] * 2


@pytest.mark.parametrize("errors", [False, {"signals": False}])
def test_it_can_be_switched_off(tmp_path, errors):
    with make_logger(tmp_path, errors=errors):
        assert not is_ours()


def test_a_logger_of_another_thread_says_that_it_cannot_handle_them(tmp_path, caplog):
    caplog.set_level("INFO", "toolkit.telemetry")
    made = []
    thread = threading.Thread(target=lambda: made.append(make_logger(tmp_path)))
    thread.start()
    thread.join()

    assert not is_ours()
    assert "log.close('signal')" in caplog.text
    made[0].close()


def test_a_logger_that_another_thread_closes_leaves_the_default_action(tmp_path):
    log = make_logger(tmp_path)
    thread = threading.Thread(target=log.close)
    thread.start()
    thread.join()
    try:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    finally:
        for number in NUMBERS:
            signal.signal(number, signal.SIG_DFL)


def of_submitit(number, frame=None):
    """Pass over a signal, as `SignalHandler.bypass` of submitit does."""
    seen.append(number)


seen: list[int] = []


@pytest.fixture
def handled():
    """Return what reached the script's own handler."""
    seen.clear()
    yield seen
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_handler_that_the_script_or_submitit_set_before_is_left_alone(tmp_path, handled, caplog):
    caplog.set_level("INFO", "toolkit.telemetry")
    signal.signal(signal.SIGTERM, of_submitit)
    with make_logger(tmp_path) as log:
        assert (is_ours(), is_ours(signal.SIGHUP)) == (False, True)
        os.kill(os.getpid(), signal.SIGTERM)

        assert handled == [signal.SIGTERM]
        assert log.is_live
    assert signal.getsignal(signal.SIGTERM) is of_submitit
    assert "SIGTERM is handled by the script" in caplog.text


def test_a_handler_that_is_set_later_replaces_ours_and_stays(tmp_path, handled):
    with make_logger(tmp_path) as log:
        signal.signal(signal.SIGTERM, of_submitit)
        os.kill(os.getpid(), signal.SIGTERM)

        assert log.is_live
    assert handled == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is of_submitit
    assert records_of(log, "error") == []


def test_a_handler_that_calls_ours_decides_itself_what_comes_next(tmp_path, handled):
    # As Lightning's, which ends the training after the batch.
    with make_logger(tmp_path) as log:
        ours = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda number, frame: (handled.append(number), ours(number, frame)))
        os.kill(os.getpid(), signal.SIGTERM)

        assert log.is_live
    assert handled == [signal.SIGTERM]


def test_a_signal_that_is_ignored_is_left_alone(tmp_path):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with make_logger(tmp_path):
            assert (is_ours(), is_ours(signal.SIGHUP)) == (True, False)
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("is_in_thread", [False, True])
def test_a_forked_child_has_the_default_and_dies_of_a_signal_right_away(tmp_path, is_in_thread):
    codes = []

    def fork():
        for _ in range(10):
            child = os.fork()
            if child == 0:
                if any(map(is_ours, NUMBERS)) or signal.pthread_sigmask(signal.SIG_BLOCK, []):
                    os._exit(1)
                time.sleep(60)
                os._exit(0)
            os.kill(child, signal.SIGTERM)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with make_logger(tmp_path) as log:
        thread = threading.Thread(target=fork)
        thread.start() if is_in_thread else fork()
        if is_in_thread:
            thread.join()
        assert log.is_live
        assert is_ours()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
    assert codes == [-signal.SIGTERM] * 10


# ---------------------------------------------------------------- it always ends the process

RUN = """
import asyncio, os, resource, signal, sys, threading, time
sys.path.insert(0, {root!r})
from tests.telemetry.logged import make_logger
number = signal.Signals[sys.argv[2]]
log = make_logger(sys.argv[1])
log.log_step(0, train_loss=1.0)
{last}
"""


def how_it_ended(folder, last, *, name="SIGTERM", launcher=()):
    """Return the exit code of a script that `last` ends, and the signals of its error and end records."""
    script = folder / "train.py"
    script.write_text(RUN.format(root=str(Path(__file__).parents[3]), last=last))
    if launcher:
        ended = subprocess.run(
            [sys.executable, *launcher, script, folder, name], capture_output=True, text=True
        )
    else:
        ended = run_python([script, folder, name], capture_output=True, text=True)
    file = folder / "r" / "metrics.jsonl"
    records = read_records(file) if file.exists() else []
    # The machine of a script that is over so soon is described between them.
    others = [record for record in records if record["event"] != "environment"]
    return ended.returncode, [record.get("type", record.get("signal")) for record in others[-2:]]


RIGHT_AWAY = "os.kill(os.getpid(), number)\n"
NO_THREADS = """
# A thread's stack does not fit into what is left of the address space.
log.flush()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20), resource.RLIM_INFINITY))
threading.stack_size(1 << 30)
"""
IN_A_LOOP = """
async def train():
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
    while True:
        await asyncio.sleep(0.1)
asyncio.run(train())
"""
FROM_A_THREAD = """
threading.Thread(target=os.kill, args=(os.getpid(), number)).start()
while True:
    # A call that the signal came too early to interrupt ends before Python runs its handler.
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("last", "name"),
    [
        (RIGHT_AWAY + "time.sleep(600)", "SIGTERM"),
        (RIGHT_AWAY, "SIGTERM"),
        (RIGHT_AWAY + "log.close()", "SIGTERM"),
        (RIGHT_AWAY + "sys.exit(3)", "SIGTERM"),
        (RIGHT_AWAY + "threading.Event().wait()", "SIGHUP"),
        (IN_A_LOOP, "SIGTERM"),
        (FROM_A_THREAD, "SIGHUP"),
    ],
    ids=["sleeps", "ends", "closes", "exits", "waits", "asyncio", "thread"],
)
def test_the_process_dies_by_the_signal_and_the_run_says_so(tmp_path, last, name):
    assert how_it_ended(tmp_path, last, name=name) == (-signal.Signals[name], [name, name])


def test_where_no_thread_can_be_started_the_process_dies_and_its_records_are_kept(tmp_path):
    code, _ = how_it_ended(tmp_path, NO_THREADS + RIGHT_AWAY + "time.sleep(600)")

    assert code == -signal.SIGTERM
    assert [r["train_loss"] for r in read_records(tmp_path / "r" / "metrics.jsonl", "step")] == [1.0]


@in_make_faults  # torchrun needs a quiet machine to start its worker
def test_torchrun_s_worker_ends_as_without_us(tmp_path):
    pytest.importorskip("torch")
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node=1", "--standalone")
    # The worker asks the agent to end, which sends SIGTERM to it.
    last = "os.kill(os.getppid(), number)\ntime.sleep(600)"
    code, signals = how_it_ended(tmp_path, last, launcher=launcher)

    assert code != 0
    assert signals == ["SIGTERM", "SIGTERM"]
