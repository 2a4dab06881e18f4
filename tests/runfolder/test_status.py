"""How a run does is known from its process where that can be asked, and judged by its last sign of life elsewhere."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.waiting import wait_until
from toolkit.telemetry.runfolder import process
from toolkit.telemetry.runfolder.manifest import Heartbeat, Manifest, Session
from toolkit.telemetry.runfolder.process import boot_id, host_name, is_alive, pid_namespace, process_started
from toolkit.telemetry.runfolder.status import work_out_status

NOW = 1_700_000_000.0
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="start times come from /proc")


def manifest(*, age=1.0, **about):
    """Return the manifest of a run of this very process whose last sign of life is `age` seconds old."""
    session = Session(
        session=1,
        started=NOW - 3600,
        pid=os.getpid(),
        pid_started=process_started(os.getpid()),
        host=host_name(),
        boot_id=boot_id(),
    )
    return Manifest(
        run_id="i",
        name="n",
        display_name="N",
        created=NOW - 3600,
        sessions=(replace(session, **about),),
        heartbeat=Heartbeat(time=NOW - age) if age is not None else None,
    )


@pytest.mark.parametrize(
    ("about", "name", "sure", "why"),
    [
        pytest.param({"age": 3.0}, "running", True, "3 s ago", id="a living process"),
        ({"age": 15.0}, "running", True, ""),
        pytest.param({"age": 15.1}, "stalled", True, "", id="silent"),
        pytest.param({"age": 9e6}, "stalled", True, "", id="a living process is never lost"),
        *(
            pytest.param({"age": 9e6, "status": end, "reason": "because"}, end, True, "because", id=end)
            for end in ("finished", "failed", "stopped")
        ),
        pytest.param({"boot_id": "another boot"}, "lost", True, "restarted", id="restarted", marks=linux),
        pytest.param(
            {"pid_started": lambda: process_started(os.getpid()) - 1},
            "lost",
            True,
            "",
            id="another process of the same number",
            marks=linux,
        ),
        pytest.param(
            {"age": 1000.0, "pid_namespace": pid_namespace()},
            "stalled",
            True,
            "",
            id="our container",
            marks=linux,
        ),
        *(
            ({"age": age, "host": "elsewhere", "pid": 1}, name, False, "elsewhere")
            for age, name in ((15.0, "running"), (16.0, "stalled"), (300.0, "stalled"), (301.0, "lost"))
        ),
        *(
            ({"age": -500.0, **where}, "running", None, "500 s ahead")
            for where in ({}, {"host": "elsewhere"})
        ),
        pytest.param({"age": None, "started": NOW - 5}, "running", True, "", id="no sign of life yet"),
        ({"age": None, "started": 0.0}, "stalled", True, ""),
        *(({"pid": pid, "age": 1000.0}, "lost", None, "") for pid in (0, -1, -9)),
    ],
)
def test_the_status_is_what_is_known_of_the_process_or_else_of_the_last_sign_of_life(about, name, sure, why):
    about = {key: value() if callable(value) else value for key, value in about.items()}
    found = work_out_status(manifest(**about), NOW)

    assert (found.name, found.sure) == (name, found.sure if sure is None else sure)
    assert why in found.why


def test_a_process_that_is_gone_is_lost_however_recent_its_sign_of_life():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    found = work_out_status(manifest(age=0.0, pid=child.pid), NOW)

    assert (found.name, found.sure) == ("lost", True)
    assert str(child.pid) in found.why


@linux
def test_a_zombie_process_is_dead():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started = process_started(child.pid)

    assert is_alive(child.pid, started)

    child.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(child.pid, started))

    # Its parent, this test, has not waited for it: it still has its number, and answers signals.
    os.kill(child.pid, 0)
    assert is_alive(child.pid, started) is False
    assert is_alive(child.pid, None) is False
    assert work_out_status(manifest(pid=child.pid, pid_started=started), NOW).name == "lost"
    child.wait()


@pytest.mark.parametrize(
    ("age", "name"), [(0.0, "running"), (15.0, "running"), (16.0, "stalled"), (301.0, "lost")]
)
@pytest.mark.parametrize("pid", [1, 2**22 + 1])
def test_a_run_in_another_container_is_judged_by_age_alone_whatever_process_has_its_number_here(
    pid, age, name
):
    found = work_out_status(manifest(age=age, pid_namespace=12345, pid=pid, pid_started=None), NOW)

    assert (found.name, found.sure) == (name, False)
    assert f"process {pid} of another container on {host_name()}" in found.why


def test_a_later_sign_of_life_counts():
    assert work_out_status(manifest(age=100.0), NOW, last_sign=NOW - 2).name == "running"
    assert work_out_status(manifest(age=2.0), NOW, last_sign=NOW - 100).name == "running"


def test_a_run_without_a_session_never_began():
    assert work_out_status(Manifest(run_id="i", name="n", display_name="N", created=1.0), NOW).name == "lost"


def test_a_number_that_no_process_can_have_is_of_a_dead_one():
    assert is_alive(2**40, None) is False


def test_where_the_system_says_nothing_age_decides(monkeypatch):
    monkeypatch.setattr(process.sys, "platform", "win32")

    assert work_out_status(manifest(age=1.0), NOW).sure is False
    assert work_out_status(manifest(age=1000.0), NOW).name == "lost"


def test_a_process_of_another_user_is_alive(monkeypatch):
    def refuse(pid, number):
        raise PermissionError

    monkeypatch.setattr(process.os, "kill", refuse)

    assert is_alive(os.getpid(), process_started(os.getpid())) is True


@linux
def test_a_process_whose_name_is_full_of_brackets_has_a_start_time(tmp_path):
    name = tmp_path / "a ) R 1 (b"
    name.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(name), "600"])
    try:
        stat = Path(f"/proc/{child.pid}/stat")
        wait_until(lambda: b"a ) R" in stat.read_bytes())

        assert abs(process_started(child.pid) - process_started(os.getpid())) < 10_000_000
        assert is_alive(child.pid, process_started(child.pid)) is True
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("word", ["\x1b[2Jowned", "paused", "", "x" * 3000])
def test_a_word_that_is_no_status_is_not_shown_as_one(word):
    found = work_out_status(manifest(status=word), NOW)

    assert found.name == "lost"
    assert "\x1b" not in found.why
    assert len(found.why) < 100
