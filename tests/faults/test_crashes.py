"""The ways a training crashes: what its run folder says of each, and that the script ends as it would without us."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from tests.faults.children import repair
from tests.faults.crashing import Twice, assert_same_end, kill_when_it_says, script_stack
from tests.lengths import in_make_faults, longer
from tests.records import read_records, with_event
from tests.waiting import wait_until
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.status import work_out_status

TRAINS = """
for step in range(5):
    log.log_step(step, train_loss=1.0, epoch=0)
say("the last words")
"""


def reported(twice):
    """Return the error records, and the end record where there is one."""
    records = read_records(twice.run_folder)
    errors = [record for record in with_event(records, "error") if record.get("source") != "telemetry"]
    ends = with_event(records, "end")
    return errors, ends[0] if ends else None


def status_of(twice):
    return work_out_status(read_manifest(twice.run_folder), time.time())


FAILS = """
def fail(batch):
    raise ValueError(f"no such batch: {batch}")

"""


INSIDE = """
log.log_step(4)
say("the last words")
fail(7)
"""


@pytest.mark.parametrize(
    ("source", "caught_by"),
    [
        pytest.param("log = begin()" + TRAINS + FAILS + "fail(7)", "end", id="no one looks"),
        pytest.param(
            "log = begin()" + FAILS + "with log.capture_errors():" + INSIDE.replace("\n", "\n    "),
            "capture_errors",
            id="a block",
        ),
        pytest.param(
            "log = begin()\n@log.capture_errors()" + FAILS + TRAINS + "fail(7)",
            "capture_errors",
            id="a decorated function",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 11), reason="one frame of ours is in the traceback"
            ),
        ),
        pytest.param(
            "log = begin()"
            + FAILS
            + "try:\n    with log.capture_errors():"
            + INSIDE.replace("\n", "\n        ")
            + "\nfinally:\n    log.close()",
            "capture_errors",
            id="closed on the way out",
        ),
    ],
)
def test_an_exception(tmp_path, source, caught_by):
    twice = Twice(tmp_path, source)
    logged, plain = twice.run()

    assert_same_end(logged, plain)
    assert logged.code == 1
    assert "ValueError: no such batch: 7" in logged.err
    (error,), end = reported(twice)
    assert (error["type"], error["module"], error["caught_by"]) == ("ValueError", "builtins", caught_by)
    assert error["message"] == "ValueError: no such batch: 7"
    assert error["stack"][-1].endswith(" in fail")
    assert error["stack"][-1].startswith("train.py:")
    assert error["global_step"] == 4
    assert error["thread"] == "MainThread"
    if caught_by != "end":
        assert error["output"][-1] == "the last words"
    assert (end["status"], end["reason"], end["errors_total"]) == ("failed", "failed", 1)
    assert (status_of(twice).name, status_of(twice).sure) == ("failed", True)


def test_an_exception_in_a_thread(tmp_path):
    twice = Twice(
        tmp_path,
        """
        log = begin()
        @log.capture_errors()
        def load():
            raise OSError("the disk is gone")
        threads = [threading.Thread(target=load, name="loader") for _ in range(3)]
        for thread in threads:
            thread.start()
            thread.join()
        """
        + TRAINS.replace("\n", "\n        "),
    )
    logged, plain = twice.run()

    assert_same_end(logged, plain)
    assert logged.code == 0
    assert logged.err.count("Exception in thread loader") == 3
    (error,), end = reported(twice)
    assert (error["type"], error["thread"], error["caught_by"]) == ("OSError", "loader", "capture_errors")
    assert end["status"] == "finished", "the script itself went on to its end"
    (counted,) = end["errors"]
    assert (counted["fingerprint"], counted["count"]) == (error["fingerprint"], 3)


LIMITED = """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
hoard = []
"""


HOARDS = LIMITED + "with log.capture_errors():\n    while True:\n        hoard.append(bytearray({}))"
# The machine is described first, which takes threads and memory.
DESCRIBED = "log = begin()\nlog.log_start()\n"


def test_memory_runs_out(tmp_path):
    twice = Twice(tmp_path, DESCRIBED + TRAINS + HOARDS.format(64 << 20))
    logged, plain = twice.run()

    assert logged.code == plain.code == 1
    assert_same_end(logged, plain)
    assert f"hoard.append(bytearray({64 << 20}))" in logged.err
    assert "\nMemoryError\n" in logged.err
    (error,), end = reported(twice)
    assert error["type"] == "MemoryError"
    memory = error["memory"]
    assert memory["rss_mb"] > 1
    assert memory["address_space_limit_mb"] > 256
    assert memory["ram_total_mb"] > memory["rss_mb"]
    assert end["status"] == "failed"


def test_memory_runs_out_to_the_last_byte(tmp_path):
    """Where nothing at all is left, what can still be printed and recorded of it depends on the last bytes."""
    twice = Twice(tmp_path, DESCRIBED + TRAINS + HOARDS.format(2_000))
    logged, plain = twice.run()

    assert plain.code == 1
    assert logged.code in (1, -signal.SIGSEGV), "the JSON encoder may crash, as docs/guarantees.md says"
    if logged.code == 1:
        assert "MemoryError" in logged.err
    errors, end = reported(twice)
    assert {error["type"] for error in errors} <= {"MemoryError"}
    assert end is None or end["status"] == "failed"


WAITS = """
say("waiting")
time.sleep(60)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal(tmp_path, name):
    number = getattr(signal, name)
    waits = f"with log.span('training_loop'), log.span('backward'):{WAITS}".replace("\n", "\n    ")
    twice = Twice(tmp_path, "log = begin()" + TRAINS + waits)
    logged, plain = twice.run(kill_when_it_says("waiting", number, after_s=0.2))

    assert_same_end(logged, plain)
    assert logged.code == -number
    (error,), end = reported(twice)
    assert (error["type"], error["caught_by"], error["severity"]) == (name, "signal", "warning")
    assert error["spans"] == ["training_loop", "backward"]
    began = script_stack(error["stack"])[0]
    assert began.startswith("train.py:"), "where the main thread was"
    assert began.endswith(" in <module>")
    assert (end["status"], end["reason"], end["signal"]) == ("stopped", "signal", name)
    assert (status_of(twice).name, status_of(twice).sure) == ("stopped", True)


def test_a_signal_in_the_middle_of_telemetry_s_own_work(tmp_path):
    kill = kill_when_it_says("waiting", signal.SIGTERM, after_s=0.3)
    plain = None
    for attempt in range(longer(1, 8)):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        twice = Twice(
            folder,
            """
            log = begin()
            say("waiting")
            step = 0
            while True:
                step += 1
                log.log_step(step, train_loss=1.0, mine={"a": 1})
            """,
        )
        plain = plain or twice.run_plain(kill)
        logged = twice.run_logged(kill)

        assert_same_end(logged, plain)
        assert logged.code == -signal.SIGTERM
        (error,), end = reported(twice)
        assert error["type"] == "SIGTERM"
        assert end["reason"] == "signal"


def test_a_second_signal_does_not_wait(tmp_path):
    twice = Twice(
        tmp_path,
        """
        class Slow:
            name = "slow"
            def write(self, batch):
                time.sleep(600)
            def close(self):
                pass

        log = begin(sinks=[Slow()], close_timeout=600)
        """
        + (TRAINS + WAITS).replace("\n", "\n        "),
    )

    def kill_twice(child):
        kill_when_it_says("waiting", signal.SIGTERM, after_s=0.2)(child)
        files = twice.run_folder.glob
        wait_until(lambda: any(b'"type":"SIGTERM"' in path.read_bytes() for path in files("*.jsonl*")))
        child.process.send_signal(signal.SIGTERM)

    ended = twice.run_logged(kill_twice)

    assert ended.code == -signal.SIGTERM
    repair(twice.run_folder)
    assert reported(twice)[0][0]["type"] == "SIGTERM", "it was written before anything that takes long"


@pytest.mark.parametrize(
    ("ends", "status", "errors", "code"),
    [
        pytest.param("sys.exit(3)", "failed", 1, 3, id="outside of every block"),
        pytest.param("exit(3)", "failed", 1, 3, id="as at a prompt"),
        pytest.param("sys.exit('no data')", "failed", 1, 1, id="with a text"),
        pytest.param("with log.capture_errors():\n    sys.exit(3)", "failed", 1, 3, id="inside of a block"),
        pytest.param(
            "try:\n    sys.exit(3)\nfinally:\n    log.close()", "failed", 1, 3, id="closed by a finally"
        ),
        pytest.param(
            "try:\n    with log.capture_errors():\n        sys.exit(3)\nfinally:\n    log.close()",
            *("failed", 1, 3),
            id="closed on the way out",
        ),
        pytest.param(
            "try:\n    with log.capture_errors():\n        sys.exit(9)\nexcept SystemExit:\n    pass\n"
            "log.log_step(99)\nlog.close()\nsys.exit(3)",
            *("finished", 1, None),
            id="caught, and it went on",
        ),
        pytest.param("raise SystemExit(3)", "finished", 0, None, id="raised, which cannot be seen"),
    ],
)
def test_sys_exit(tmp_path, ends, status, errors, code):
    twice = Twice(tmp_path, "log = begin()" + TRAINS + ends)
    logged, plain = twice.run()

    assert_same_end(logged, plain)
    found, end = reported(twice)
    assert [error["type"] for error in found] == ["SystemExit"] * errors
    assert (end["status"], end.get("exit_code")) == (status, code)
    assert all(error["stack"][-1].endswith(" in <module>") for error in found), "where it was called"


LOADER = """
import concurrent.futures, multiprocessing
def load(number):
    with log.capture_errors():
        raise KeyError(f"no image {number}")
context = multiprocessing.get_context("fork")
"""


def test_an_exception_in_a_worker_process(tmp_path):
    twice = Twice(
        tmp_path,
        "log = begin()"
        + TRAINS
        + LOADER
        + "with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:\n"
        + "    list(pool.map(load, range(3)))",
    )
    logged, plain = twice.run()

    assert_same_end(logged, plain)
    assert logged.code == 1
    (error,), end = reported(twice)
    assert error["type"] == "KeyError"
    (cause, *_) = error["caused_by"]
    assert "in load" in cause["message"], "what the worker sent along is where it happened"
    assert end["status"] == "failed"


def test_an_exception_that_ends_a_worker_process_is_not_the_run_s(tmp_path):
    twice = Twice(
        tmp_path,
        "log = begin()"
        + TRAINS
        + LOADER
        + "worker = context.Process(target=load, args=(1,))\nworker.start()\nworker.join()\nsay(worker.exitcode)",
    )
    logged, plain = twice.run()

    assert_same_end(logged, plain)
    assert logged.code == 0
    assert reported(twice)[0] == []


@in_make_faults
def test_a_hang(tmp_path):
    # Some seconds, since the usual time from step to step has to be known first.
    twice = Twice(
        tmp_path,
        """
        log = begin(errors={"hang_after": 1})
        lock = threading.Lock()
        lock.acquire()
        signal.signal(signal.SIGUSR1, lambda *_: lock.release())
        is_asked_to_end = []
        signal.signal(signal.SIGUSR2, lambda *_: is_asked_to_end.append(True))
        def wait_for_the_other_rank():
            with log.span("all_reduce"):
                say("hanging")
                # Again and again: a signal that comes right before such a wait does not interrupt it.
                while not lock.acquire(timeout=0.5):
                    pass
        def load():
            time.sleep(60)
        threading.Thread(target=load, name="loader", daemon=True).start()
        for step in range(1, 150):
            if os.environ["LOGGED"] == "1":
                time.sleep(0.04)
            log.log_step(step, train_loss=1.0 / step)
        wait_for_the_other_rank()
        say("going on")
        while not is_asked_to_end:
            step += 1
            time.sleep(0.02)
            log.log_step(step, train_loss=1.0 / step)
        """,
    )

    def wait_for_word_of_it(times):
        word = b'"id":"1-hang-global_step-149"'
        wait_until(lambda: (twice.run_folder / "metrics.jsonl").read_bytes().count(word) >= times)

    def release(child, is_logged=False):
        child.wait_for_line("hanging")
        if is_logged:
            wait_for_word_of_it(times=1)
        child.process.send_signal(signal.SIGUSR1)
        child.wait_for_line("going on")
        if is_logged:
            wait_for_word_of_it(times=2)
        child.process.send_signal(signal.SIGUSR2)

    logged = twice.run_logged(lambda child: release(child, is_logged=True))
    plain = twice.run_plain(release)

    assert_same_end(logged, plain)
    assert logged.code == 0
    # A machine that is busy elsewhere may hold up an earlier step.
    found, over = [record for record in hangs(twice) if record["start_step"] == 149]
    assert (found["state"], found["start_step"], found["severity"]) == ("open", 149, "info")
    assert found["evidence"]["seconds"] >= 2
    assert 0.01 < found["evidence"]["usual_s"] < 1.0
    main, *others = found["stacks"]
    assert main["threads"] == ["MainThread"]
    assert " in wait_for_the_other_rank" in main["stack"][-1]
    assert [stack["threads"] for stack in others if " in load" in stack["stack"][-1]] == [["loader"]]
    assert not any(thread.startswith("telemetry") for stack in found["stacks"] for thread in stack["threads"])
    assert [span["name"] for span in found["open_spans"]] == ["all_reduce"]
    assert (over["id"], over["state"]) == (found["id"], "resolved")
    assert over["resolved_step"] >= 149
    assert "stacks" not in over
    stalls = [each for each in findings(twice) if each["kind"] == "stalled"]
    assert stalls == [], "one trouble is reported once"


def findings(twice):
    return with_event(read_records(twice.run_folder), "finding")


def hangs(twice):
    return [record for record in findings(twice) if record["kind"] == "hang"]
