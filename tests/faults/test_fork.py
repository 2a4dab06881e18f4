"""Processes that a training process makes: they write nothing, hang nowhere and take nothing along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.faults.children import LONGEST_PAUSE_S, PROGRAMS, repair
from tests.faults.crash_checks import whole_run
from tests.fork_server import A_TRAINING, run_python
from tests.lengths import in_make_faults, is_long, longer
from tests.records import with_event
from toolkit.telemetry.runfolder.manifest import read_manifest


@pytest.mark.parametrize(
    "in_the_child",
    ["logger", "method", "copy"],
    ids=["uses the logger", "uses a method it kept", "uses a copy"],
)
def test_a_child_forked_in_the_middle_of_a_call_does_not_hang_and_writes_nothing(
    tmp_path, start, in_the_child
):
    start(PROGRAMS / "fork_in_the_middle_of_a_call.py", tmp_path, in_the_child).end(code=7)

    records = whole_run(tmp_path / "run", steps=range(2))
    assert len(with_event(records, "start")) == len(with_event(records, "end")) == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]


FORKS = longer(60, 500)


@in_make_faults
@pytest.mark.slow
def test_forks_next_to_a_thread_that_logs_disturb_nothing(tmp_path, start, record_property):
    ended = start(PROGRAMS / "fork_while_a_thread_logs.py", tmp_path, FORKS).end(200, code=7)

    record_property(
        "measured",
        f"{FORKS} forks, {ended.number('ended_badly'):.0f} children hung, "
        f"slowest call {ended.number('slowest') * 1e3:.1f} ms",
    )
    assert ended.number("ended_badly") == 0, ended.err
    assert ended.number("slowest") < LONGEST_PAUSE_S
    records = whole_run(tmp_path / "run", steps=range(FORKS))
    ours = {"start", "environment", "system", "step", "from_the_thread", "finding", "lost", "end"}
    assert {record["event"] for record in records} <= ours
    assert sum(record["records"] for record in with_event(records, "lost")) == 3 * FORKS, (
        "calls of the children"
    )
    assert len(with_event(records, "start")) == len(with_event(records, "end")) == 1


@in_make_faults
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "epochs"), [("fork", longer(1, 5)), *([("spawn", 1), ("forkserver", 1)] if is_long() else [])]
)
def test_data_loader_workers_that_hold_the_logger_do_not_disturb_it(tmp_path, start, method, epochs):
    ended = start(PROGRAMS / "load_data_in_workers.py", tmp_path, method, epochs, imported=A_TRAINING).end(
        220
    )

    assert ended.code == 7, ended.err
    assert ended.number("total") == 780 * epochs
    records = whole_run(tmp_path / "run", steps=range(10 * epochs))
    assert not with_event(records, "from_a_worker")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"], (
        "a worker made no run of its own"
    )
    assert ended.out.count("[telemetry] Logging to") == 1


CALLS_IN_ANOTHER_PROCESS = """
import multiprocessing, sys
from toolkit.telemetry import TelemetryLogger

class Model:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.log_step(9, train_loss=1.0)

def work(log):
    for step in range(5):
        try:
            log.log_step(step, train_loss=1.0)
        except ValueError:
            print("raised")
    log.flush(), log.span("x"), log.close()

if __name__ == "__main__":
    where = sys.argv[2]
    log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, strict=sys.argv[3] == "strict")
    if where == "at exit":
        model = Model(log)
    else:
        for _ in range(3 if where == "fork" else 1):
            process = multiprocessing.get_context(where).Process(target=work, args=(log,))
            process.start()
            process.join()
"""


@pytest.mark.parametrize(("where", "lost"), [("fork", 15), ("spawn", 0), ("at exit", 1)])
@pytest.mark.parametrize("strict", ["", "strict"])
def test_a_call_that_cannot_be_written_is_said_once_counted_and_raises_if_strict(
    tmp_path, where, lost, strict
):
    (tmp_path / "calls.py").write_text(CALLS_IN_ANOTHER_PROCESS)
    command = [sys.executable, tmp_path / "calls.py", tmp_path, where, strict]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)

    records = whole_run(tmp_path / "run")
    assert sum(record["records"] for record in with_event(records, "lost")) == lost
    assert with_event(records, "end")[0]["records_lost"] == (lost if where == "fork" else 0)
    if strict and where != "at exit":
        assert ended.stdout.count("raised") == max(lost, 5)
    else:
        assert ended.stderr.count("log_step was called ") == 1


RESUMES_AND_ENDS = """
TelemetryLogger("run", log_dir=sys.argv[1], resume=True).close()
"""


@pytest.mark.parametrize("by", ["repair", "the next session"])
def test_a_worker_that_outlives_its_killed_parent_does_not_keep_the_run_from_being_recovered(
    tmp_path, start, by
):
    child = start(PROGRAMS / "leave_a_child_behind.py", tmp_path)
    left_behind = int(child.wait_for_line("child=").partition("=")[2])
    try:
        child.wait_for_step(1000)
        child.process.send_signal(signal.SIGKILL)
        child.process.wait()
        os.kill(left_behind, 0)
        if by == "repair":
            repair(tmp_path / "run")
        else:
            assert start(RESUMES_AND_ENDS, tmp_path).end().code == 0
    finally:
        os.kill(left_behind, signal.SIGKILL)

    whole_run(tmp_path / "run", steps=range(child.acknowledged + 1))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("how", "code", "status"),
    [("returns", 0, "finished"), ("raises", 1, "failed"), ("exits with 3", 3, "failed")],
)
def test_training_in_a_process_of_multiprocessing_ends_properly(tmp_path, start, method, how, code, status):
    ended = start(PROGRAMS / "train_in_a_process.py", tmp_path, method, how).end()

    assert ended.code == code, ended.err
    records = whole_run(tmp_path / "run", steps=range(500))
    (end,) = with_event(records, "end")
    assert end["status"] == read_manifest(tmp_path / "run").latest.status == status


def test_a_forked_child_may_log_a_run_of_its_own(tmp_path, start):
    start(
        """
        log = TelemetryLogger("parent", log_dir=sys.argv[1], log_every=1)
        for step in range(100):
            log.log_step(step, train_loss=1.0)
        child = os.fork()
        if child == 0:
            with TelemetryLogger("child", log_dir=sys.argv[1], log_every=1) as own:
                for step in range(50):
                    own.log_step(step, train_loss=1.0)
            sys.exit(0)
        os.waitpid(child, 0)
        for step in range(100, 200):
            log.log_step(step, train_loss=1.0)
        """,
        tmp_path,
    ).end(code=0)

    whole_run(tmp_path / "parent", steps=range(200))
    whole_run(tmp_path / "child", steps=range(50))


IMPORTS_WHAT_IS_BEING_IMPORTED = """
import os, signal, sys, threading
from toolkit.telemetry.core.background import MACHINE, background_job

sys.begun = threading.Event()
open("slow_module.py", "w").write("import sys, time; sys.begun.set(); time.sleep(0.05)")
sys.path.insert(0, ".")
background_job("importing", lambda: __import__("slow_module") and None, MACHINE).start()
sys.begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    import slow_module
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_forked_during_an_import_of_ours_may_import_that_itself(tmp_path):
    done = run_python(["-c", IMPORTS_WHAT_IS_BEING_IMPORTED], cwd=tmp_path, capture_output=True, text=True)

    assert done.stdout == "7\n", done.stderr


def test_a_child_forked_while_any_lock_of_ours_is_held_does_not_hang(tmp_path, start, record_property):
    ended = start(PROGRAMS / "fork_while_each_lock_is_held.py", tmp_path).end(220, code=7)

    record_property("measured", f"{ended.number('locks'):.0f} locks, each held at a fork, 0 children hung")
    assert ended.number("locks") >= 10
    assert "HUNG []" in ended.out, ended.out
    assert ended.number("live_in_pools") == 0, "a logger in another process does nothing"
    assert ended.number("spawned") == 5
    records = whole_run(tmp_path / "run")
    assert not [record for record in with_event(records, "step") if record["global_step"] >= 1_000_000]
    assert sorted(record["number"] for record in with_event(records, "from_a_task")) == list(range(50))
