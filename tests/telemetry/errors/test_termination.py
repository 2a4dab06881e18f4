"""A signal that ends the process is listened for behind Python's back, and given back exactly."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.telemetry.logged import make_logger, records_of
from toolkit.telemetry.errors import termination
from toolkit.telemetry.errors.termination import TERMINATION

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is listened for")

NUMBERS = [signal.SIGTERM, signal.SIGHUP]


def in_c():
    """Return what C calls at each signal."""
    return {number: handler_of(number) for number in signal.valid_signals()}


def handler_of(number):
    return termination._handler_of(termination._action(number))


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
    deadline = time.monotonic() + 60
    while "telemetry-termination" in {thread.name for thread in threading.enumerate()} - before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


def test_a_forked_child_has_the_default_and_none_of_the_sockets(tmp_path):
    with make_logger(tmp_path):
        held = [each.reader.fileno() for each in TERMINATION._hooked]
        child = os.fork()
        if child == 0:
            are_open = [os.path.exists(f"/proc/self/fd/{number}") for number in held]
            os._exit(1 if is_hooked() or any(are_open) else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert is_hooked()


def test_what_a_child_writes_before_its_exec_does_not_end_its_parent(tmp_path):
    with make_logger(tmp_path) as log:
        hooked = TERMINATION._hooked[0]
        written_by = hooked.writer.fileno()
        # Between fork and exec a child has the handler and the socket, and no hook of Python's has run in it.
        writes = [sys.executable, "-S", "-c", f"import os; os.write({written_by}, b'a')"]
        subprocess.run(writes, pass_fds=[written_by], check=True)
        deadline = time.monotonic() + 60
        while select.select([hooked.reader], [], [], 0)[0]:
            assert time.monotonic() < deadline, "it is not read"
            time.sleep(0.01)

        assert is_hooked(hooked.number)
        assert log.is_live
