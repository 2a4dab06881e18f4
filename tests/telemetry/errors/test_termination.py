"""A signal that ends the process is noticed without Python knowing, always ends it, and is restored exactly."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.fork_server import run_python
from tests.telemetry.logged import make_logger, read_records, records_of
from tests.waiting import wait_until
from toolkit.core import background
from toolkit.telemetry.errors.termination import TERMINATION, handler_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is listened for")

NUMBERS = [signal.SIGTERM, signal.SIGHUP]


def in_c():
    """Return what C calls at each signal."""
    return {number: handler_of(number) for number in signal.valid_signals()}


def is_hooked(number=signal.SIGTERM):
    return handler_of(number) not in (0, 1)


@pytest.fixture(autouse=True)
def _as_it_was():
    """Every test leaves the process as it found it."""
    before = in_c()
    yield
    assert in_c() == before


@pytest.fixture
def handled():
    """Have the script handle SIGTERM itself, and return what reached it."""
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)


def test_python_finds_the_default(tmp_path):
    with make_logger(tmp_path):
        assert [is_hooked(number) for number in NUMBERS] == [True, True]
        assert [signal.getsignal(number) for number in NUMBERS] == [signal.SIG_DFL] * 2
        assert signal.set_wakeup_fd(-1) == -1


def test_two_loggers_share_it_and_the_last_one_gives_it_back(tmp_path):
    before = {thread.name for thread in threading.enumerate()}
    first, second = make_logger(tmp_path, "first"), make_logger(tmp_path, "second")
    first.close()
    assert is_hooked()
    second.close()

    assert not is_hooked()
    wait_until(
        lambda: "telemetry-termination" not in {thread.name for thread in threading.enumerate()} - before
    )


@pytest.mark.parametrize("errors", [False, {"signals": False}])
def test_it_can_be_switched_off(tmp_path, errors):
    with make_logger(tmp_path, errors=errors):
        assert not is_hooked()


def test_a_logger_of_another_thread_has_it_too(tmp_path):
    made = []
    thread = threading.Thread(target=lambda: made.append(make_logger(tmp_path)))
    thread.start()
    thread.join()

    assert is_hooked()
    made[0].close()


def test_a_handler_of_the_script_is_left_alone(tmp_path, handled, caplog):
    caplog.set_level("INFO", "toolkit.telemetry")
    before = in_c()
    with make_logger(tmp_path) as log:
        assert in_c()[signal.SIGTERM] == before[signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGTERM)

        assert handled == [signal.SIGTERM]
        assert log.is_live
    assert "telemetry.errors.signals: true" in caplog.text


def test_a_handler_in_c_is_left_alone(tmp_path):
    faulthandler.register(signal.SIGTERM, file=sys.__stderr__.fileno(), chain=True)
    try:
        before = in_c()
        with make_logger(tmp_path):
            assert in_c()[signal.SIGTERM] == before[signal.SIGTERM]
    finally:
        faulthandler.unregister(signal.SIGTERM)


def test_a_signal_that_is_ignored_is_left_alone(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with make_logger(tmp_path):
            assert (is_hooked(signal.SIGTERM), is_hooked(signal.SIGHUP)) == (True, False)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_handler_that_is_set_later_takes_its_place_and_stays(tmp_path):
    seen = []
    log = make_logger(tmp_path)
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        assert before == signal.SIG_DFL, "a script that sets one finds the default"
        os.kill(os.getpid(), signal.SIGTERM)
        assert log.is_live
        log.close()
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert seen == [signal.SIGTERM] * 2
    assert records_of(log, "error") == []


def test_a_forked_child_has_the_default(tmp_path):
    with make_logger(tmp_path):
        child = os.fork()
        if child == 0:
            os._exit(1 if is_hooked() else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert is_hooked()


def test_a_forked_child_that_is_terminated_immediately_dies(tmp_path):
    with make_logger(tmp_path) as log:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            os.kill(child, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        assert log.is_live


def test_a_signal_to_a_child_before_its_exec_does_not_end_its_parent(tmp_path):
    with make_logger(tmp_path) as log:
        # As between fork and exec: the child has the handler, and runs nothing of Python's.
        library, stack = ctypes.CDLL(None), ctypes.create_string_buffer(1 << 16)
        top = ctypes.c_void_p((ctypes.addressof(stack) + len(stack)) & ~63)
        child = library.clone(ctypes.cast(library.pause, ctypes.c_void_p), top, int(signal.SIGCHLD), None)
        assert child > 0

        def has_ended():
            # Again, if it came before the pause.
            os.kill(child, signal.SIGTERM)
            return os.waitpid(child, os.WNOHANG)[0]

        wait_until(has_ended)
        TERMINATION.act()

        assert is_hooked()
        assert log.is_live


def test_no_thread_and_no_child_has_a_signal_blocked(tmp_path, monkeypatch):
    # Threads of this test alone: those of other tests may be about to end.
    monkeypatch.setattr(background, "_background", background.Background())

    def masks_of(status):
        return [line for line in status.splitlines() if line.startswith(("SigBlk", "SigIgn"))]

    def masks_of_a_child():
        return masks_of(subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout)

    def masks_of_threads():
        # All signals are blocked while a thread is being started.
        found = {}
        for path in Path("/proc/self/task").glob("*/status"):
            try:
                found[path.parent.name] = masks_of(path.read_text())
            except OSError:
                continue
        return found

    child, threads = masks_of_a_child(), masks_of_threads()
    mine = masks_of(Path("/proc/thread-self/status").read_text())
    with make_logger(tmp_path, system=True, csv=True):
        assert masks_of_a_child() == child
        wait_until(
            lambda: all(
                masks == mine for thread, masks in masks_of_threads().items() if thread not in threads
            )
        )
        assert set(masks_of_threads()) - set(threads)


# ---------------------------------------------------------------- it always ends the process

RUN = """
import ctypes, faulthandler, os, resource, signal, sys, threading, time
sys.path.insert(0, {root!r})
from tests.telemetry.logged import make_logger
number = signal.Signals[sys.argv[2]]
{first}
log = make_logger(sys.argv[1])
log.log_step(0, train_loss=1.0)
{last}
"""


def how_it_ended(folder, last, *, first="", name="SIGTERM"):
    """Return the exit code of a script that `last` ends, and the signals of its error and end records."""
    script = folder / "train.py"
    root = str(Path(__file__).parents[3])
    script.write_text(RUN.format(root=root, first=first, last=last))
    ended = run_python([script, folder, name], capture_output=True, text=True)
    file = folder / "r" / "metrics.jsonl"
    records = read_records(file) if file.exists() else []
    # The machine of a script that is over so soon is described between them.
    others = [record for record in records if record["event"] != "environment"]
    signals = [record.get("type", record.get("signal")) for record in others[-2:]]
    return ended.returncode, signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_a_thread_without_python_receives(tmp_path, name):
    # Such are the threads of numerical libraries, and each new thread of Python's for a moment.
    last = """
library, thread = ctypes.CDLL(None), ctypes.c_ulong()
library.pthread_create(ctypes.byref(thread), None, ctypes.cast(library.pause, ctypes.c_void_p), None)
library.pthread_kill(thread, int(number))
time.sleep(600)
"""
    number = signal.Signals[name]
    assert how_it_ended(tmp_path, last, name=name) == (-number, [name, name])


@pytest.mark.parametrize("close", ["", "log.close()", "sys.exit(3)"])
def test_a_script_that_ends_right_after_the_signal(tmp_path, close):
    last = f"os.kill(os.getpid(), number)\n{close}"
    assert how_it_ended(tmp_path, last) == (-signal.SIGTERM, ["SIGTERM"] * 2)


NO_THREADS = """
# A thread's stack does not fit into what is left of the address space.
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20), resource.RLIM_INFINITY))
threading.stack_size(1 << 30)
"""


def test_where_no_thread_can_be_started(tmp_path):
    last = "log.flush()\nos.kill(os.getpid(), number)\ntime.sleep(600)"
    assert how_it_ended(tmp_path, last, first=NO_THREADS)[0] == -signal.SIGTERM


def test_where_no_more_threads_can_be_started(tmp_path):
    described = "log._run._probe.result(60.0)\n"  # it has threads of its own
    last = described + NO_THREADS + "os.kill(os.getpid(), number)\ntime.sleep(600)"
    assert how_it_ended(tmp_path, last) == (-signal.SIGTERM, ["SIGTERM"] * 2)


LATER = """
faulthandler.register(number, file=open(sys.argv[1] + "/stacks", "w"), chain=True)
"""


def test_a_handler_in_c_that_is_set_later_and_calls_the_one_before(tmp_path):
    last = LATER + "os.kill(os.getpid(), number)\ntime.sleep(600)"
    assert how_it_ended(tmp_path, last) == (-signal.SIGTERM, ["SIGTERM"] * 2)
    assert (tmp_path / "stacks").read_text()


def test_such_a_handler_after_the_run(tmp_path):
    last = LATER + "log.close()\nos.kill(os.getpid(), number)\ntime.sleep(600)"
    assert how_it_ended(tmp_path, last)[0] == -signal.SIGTERM


def test_such_a_handler_in_a_forked_child(tmp_path):
    last = (
        LATER
        + """
child = os.fork()
if child == 0:
    os.kill(os.getpid(), number)
    time.sleep(600)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert log.is_live
log.close()
sys.exit(-code)
"""
    )
    assert how_it_ended(tmp_path, last)[0] == signal.SIGTERM
