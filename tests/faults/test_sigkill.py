"""A process that is killed: everything it was told is found afterwards."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from tests.faults.aftermath import assert_nothing_is_missing, assert_steps, events, records_of, whole_run
from tests.faults.children import ROOT, Child, repair
from toolkit.runfolder.manifest import read_manifest
from toolkit.runfolder.status import work_out_status

LOGS_FOR_EVER = """
acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
log = TelemetryLogger(sys.argv[2], log_dir=sys.argv[1], log_every=1)
step = 0
while True:
    log.log_step(step, train_loss=1.0 / (step + 1), lr=1e-4, grad_norm=0.5, a=step, b=step * 2.0, c=3)
    acknowledged.set(step)
    step += 1
    if step % 7 == 0:
        time.sleep(0.001)
"""

RESUMES_AND_ENDS = """
for name in sys.argv[2:]:
    TelemetryLogger(name, log_dir=sys.argv[1], log_every=1, resume=True).close()
"""

KILLS = 50


@pytest.mark.slow
def test_fifty_kills_at_random_moments_lose_no_acknowledged_record(tmp_path):
    runs = tmp_path / "runs"
    moments = random.Random(15)
    names = [f"run{number}" for number in range(KILLS)]
    after = {name: moments.uniform(0.0, 0.8) for name in names}

    def run_and_kill(name):
        child = Child(LOGS_FOR_EVER, runs, name, cwd=tmp_path)
        try:
            child.wait_for_step(0)
            time.sleep(after[name])
        finally:
            child.kill()
            child.process.communicate()
        return child.acknowledged

    with ThreadPoolExecutor(4) as pool:
        acknowledged = dict(zip(names, pool.map(run_and_kill, names), strict=True))
    repaired, resumed = names[::2], names[1::2]
    repair(*[runs / name for name in repaired])
    subprocess.run(
        [sys.executable, "-c", f"import sys\n{_IMPORTS}{RESUMES_AND_ENDS}", runs, *resumed],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )

    for name in names:
        records = whole_run(runs / name, steps=range(acknowledged[name] + 1))
        assert {record["session"] for record in records} == ({1} if name in repaired else {1, 2})
        assert not events(records, "lost")


_IMPORTS = "from toolkit.telemetry import TelemetryLogger\n"

STALLS_IN_THE_MIDDLE_OF_A_WRITE = """
# The disk takes the first bytes of a batch and then does not answer: a kill now leaves half a line in the file.
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, csv=False)
log.log_event("first")
log.flush()
write = os.write

def write_a_part(descriptor, data):
    if not os.readlink(f"/proc/self/fd/{descriptor}").endswith("metrics.jsonl"):
        return write(descriptor, data)
    lines = bytes(data).split(b"\\n")
    keep = {"half a line": len(lines[0]) // 2, "all but the newline": len(lines[0])}[sys.argv[2]]
    write(descriptor, bytes(data)[:keep])
    print("stalled", flush=True)
    threading.Event().wait()

os.write = write_a_part
for step in range(int(sys.argv[3])):
    log.log_step(step, train_loss=1.0)
print("logged", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("written", ["half a line", "all but the newline"])
@pytest.mark.parametrize("steps", [1, 300])
@pytest.mark.parametrize("by", ["repair", "the next session"])
def test_a_line_that_the_kill_cut_is_completed(tmp_path, start, written, steps, by):
    child = start(STALLS_IN_THE_MIDDLE_OF_A_WRITE, tmp_path, written, steps)
    child.wait_for_line("logged")
    _wait_for_torn_tail(tmp_path / "run" / "metrics.jsonl")
    child.kill()

    if by == "repair":
        repair(tmp_path / "run")
    else:
        ended = start(RESUMES_AND_ENDS, tmp_path, "run").end()
        assert ended.code == 0, ended.err

    whole_run(tmp_path / "run", steps=range(steps))


@pytest.mark.parametrize("by", ["repair", "the next session"])
def test_a_kill_without_shared_memory_loses_nothing_either(tmp_path, start, by):
    no_shared_memory = "import toolkit.telemetry.recorder as r\nr.shared_memory_folders = lambda: []\n"
    child = start(no_shared_memory + LOGS_FOR_EVER, tmp_path, "run")
    child.wait_for_step(2000)
    child.kill()
    left = list((tmp_path / "run").glob("*.journal"))

    if by == "repair":
        repair(tmp_path / "run")
    else:
        assert start(RESUMES_AND_ENDS, tmp_path, "run").end().code == 0

    assert len(left) == 1
    whole_run(tmp_path / "run", steps=range(child.acknowledged + 1))
    assert not list((tmp_path / "run").glob("*.journal"))


GROWS_A_COLUMN_A_STEP = """
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
for step in range(10):
    log.log_step(step, train_loss=1.0, metric_0=step)
    acknowledged.set(step)
log.flush()
replace, write = os.replace, os.write
stall_at = sys.argv[2]

def stall():
    print("stalled", flush=True)
    threading.Event().wait()

def replace_or_stall(source, target, **kwargs):
    if stall_at == "renaming" and str(target).endswith("metrics.csv"):
        stall()
    replace(source, target, **kwargs)

def write_or_stall(descriptor, data):
    if stall_at == "writing" and ".metrics.csv." in os.readlink(f"/proc/self/fd/{descriptor}"):
        write(descriptor, bytes(data)[: len(data) // 2])
        stall()
    return write(descriptor, data)

os.replace, os.write = replace_or_stall, write_or_stall
step = 10
while True:
    log.log_step(step, train_loss=1.0, **{f"metric_{step // 10}": step})
    acknowledged.set(step)
    step += 1
    time.sleep(0.002)
"""


@pytest.mark.parametrize("moment", ["writing", "renaming"])
def test_a_kill_while_the_table_gets_new_columns_leaves_a_readable_table(tmp_path, start, moment):
    run = tmp_path / "run"
    child = start(GROWS_A_COLUMN_A_STEP, tmp_path, moment)
    child.wait_for_line("stalled")
    child.kill()
    at_once = pd.read_csv(run / "metrics.csv")

    repair(run)

    assert {"event", "global_step", "metric_0"} <= set(at_once.columns)
    whole_run(run, steps=range(child.acknowledged + 1))
    left = sorted(path.name for path in run.iterdir() if path.name.startswith("."))
    assert not left, f"what the kill left half done: {left}"


def test_a_kill_while_the_disk_takes_nothing_loses_nothing_that_fits_into_the_queue(tmp_path, start):
    child = start(
        """
        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, csv=False)
        log.log_event("first")
        log.flush()
        write = os.write

        def full(descriptor, data):
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith("metrics.jsonl"):
                raise OSError(28, "No space left on device")
            return write(descriptor, data)

        os.write = full
        for step in range(40_000):  # about 8 MiB, much more than one half of the journal
            log.log_step(step, train_loss=1.0, lr=1e-4)
        print("logged", flush=True)
        signal.pause()
        """,
        tmp_path,
    )
    child.wait_for_line("logged")
    child.kill()

    repair(tmp_path / "run")

    whole_run(tmp_path / "run", steps=range(40_000))


def test_repair_leaves_a_living_run_alone(tmp_path, start):
    child = start(LOGS_FOR_EVER, tmp_path, "run")
    child.wait_for_step(100)
    done = subprocess.run(
        [sys.executable, "-m", "toolkit.cli.main", "repair", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    child.wait_for_step(child.acknowledged + 100)
    child.kill()

    assert done.returncode == 1
    assert "living process" in done.stdout
    repair(tmp_path / "run")
    whole_run(tmp_path / "run", steps=range(child.acknowledged + 1))


KEEPS_ALL_IN_ITS_JOURNAL = """
log = TelemetryLogger("killed", log_dir=sys.argv[1], log_every=1, flush_interval=60)
for step in range(300):
    log.log_step(step, train_loss=1.0)
print("logged", flush=True)
signal.pause()
"""

RUNS_FOR_A_WHILE = """
with TelemetryLogger("beside", log_dir=sys.argv[1], log_every=1):
    time.sleep(1.5)
"""


def test_a_run_that_starts_recovers_a_killed_one_beside_it(tmp_path, start):
    killed = start(KEEPS_ALL_IN_ITS_JOURNAL, tmp_path)
    killed.wait_for_line("logged")
    killed.kill()
    on_disk = (tmp_path / "killed" / "metrics.jsonl").read_bytes().count(b"\n")

    assert start(RUNS_FOR_A_WHILE, tmp_path).end().code == 0

    assert on_disk < 300
    records = records_of(tmp_path / "killed" / "metrics.jsonl")
    assert_nothing_is_missing(records)
    assert_steps(records, range(300))


def test_a_killed_run_whose_folder_is_away_for_a_while_is_not_given_up(tmp_path, start):
    killed = start(KEEPS_ALL_IN_ITS_JOURNAL, tmp_path / "disk")
    killed.wait_for_line("logged")
    killed.kill()
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    assert start(RUNS_FOR_A_WHILE, tmp_path).end().code == 0
    (tmp_path / "unmounted").rename(tmp_path / "disk")

    repair(tmp_path / "disk" / "killed")

    whole_run(tmp_path / "disk" / "killed", steps=range(300))


def test_a_run_that_was_moved_after_the_kill_is_made_whole_where_it_is_now(tmp_path, start):
    child = start(LOGS_FOR_EVER, tmp_path / "here", "run")
    child.wait_for_step(500)
    child.kill()
    (tmp_path / "here").rename(tmp_path / "there")

    repair(tmp_path / "there" / "run")

    whole_run(tmp_path / "there" / "run", steps=range(child.acknowledged + 1))


def test_a_run_is_found_again_through_another_name_of_its_folder(tmp_path, start):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    child = start(LOGS_FOR_EVER, tmp_path / "link", "run")
    child.wait_for_step(500)
    child.kill()

    repair(tmp_path / "real" / "run")

    whole_run(tmp_path / "real" / "run", steps=range(child.acknowledged + 1))


def test_a_killed_run_is_known_to_be_lost_even_before_its_parent_has_reaped_it(tmp_path, start):
    child = start(LOGS_FOR_EVER, tmp_path, "run")
    child.wait_for_step(10)
    child.process.send_signal(signal.SIGKILL)
    _wait_until_it_is_a_zombie(child.process.pid)

    status = work_out_status(read_manifest(tmp_path / "run"), time.time())

    assert status.name == "lost", status


def _wait_for_torn_tail(path):
    deadline = time.monotonic() + 20
    while path.read_bytes().endswith(b"\n"):
        assert time.monotonic() < deadline, "no half line was written"
        time.sleep(0.01)


def _wait_until_it_is_a_zombie(pid):
    deadline = time.monotonic() + 20
    while ") Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
