"""The start of a process is exact for any fraction of a second at which the machine booted."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from toolkit.telemetry.logger.machine import environment
from toolkit.telemetry.runfolder import process
from toolkit.telemetry.runfolder.process import process_began

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="start times come from /proc")

A_TICK_S = 0.02


@linux
def test_a_process_began_between_the_times_before_and_after_its_start():
    before = time.time()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    after = time.time()
    try:
        began = process_began(child.pid)
    finally:
        child.kill()
        child.wait()

    assert before - A_TICK_S <= began <= after + A_TICK_S


@linux
@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.5, 0.86, 0.99])
def test_the_fraction_of_a_second_at_which_the_machine_was_booted_is_not_lost(monkeypatch, fraction):
    booted = 1_700_000_000 + fraction
    ticks_a_second = os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(process, "process_started", lambda pid: 90 * ticks_a_second)
    monkeypatch.setattr(process.time, "clock_gettime", lambda clock: 100.0)
    monkeypatch.setattr(process.time, "time", lambda: booted + 100.0)

    assert process_began(1) == pytest.approx(booted + 90, abs=1e-6)


@linux
def test_psutil_is_not_asked_where_the_kernel_says_it_exactly(monkeypatch):
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 1.0)

    assert environment.this_process_began() == pytest.approx(process_began(os.getpid()), abs=A_TICK_S)


def test_where_the_kernel_does_not_say_it_psutil_does(monkeypatch):
    monkeypatch.setattr(process, "_fields_of", lambda pid: [])
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 1234.5)

    assert process_began(os.getpid()) is None
    assert environment.this_process_began() == 1234.5
