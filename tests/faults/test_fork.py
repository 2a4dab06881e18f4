"""Processes that a training process makes: they write nothing, hang nowhere and take nothing along."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.children import LONGEST_PAUSE_S, repair
from tests.faults.crash_checks import whole_run
from tests.fork_server import A_TRAINING
from tests.lengths import is_long, longer
from tests.records import with_event
from toolkit.runfolder.manifest import read_manifest

FORKS_WHILE_A_THREAD_LOGS = """
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
go_on = True

def log_events():
    while go_on:
        for _ in range(20):
            log.log_event("from_the_thread")
        time.sleep(0.001)

thread = threading.Thread(target=log_events)
thread.start()
slowest = SlowestCall()
ended_badly = []
for step in range(int(sys.argv[2])):
    slowest.of(log.log_step, step, train_loss=1.0)
    if step % 20 == 0:
        time.sleep(0.005)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs ends by this signal, and is counted below
        in_the_child()
        if step % 2:
            os._exit(0)
        sys.exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        ended_badly.append(status)
go_on = False
thread.join()
log.close()
print(f"slowest={slowest.seconds}")
print(f"ended_badly={len(ended_badly)}")
sys.exit(7)
"""

USES_THE_LOGGER = """
def in_the_child():
    log.log_step(1_000_000, train_loss=2.0)
    log.log_event("from_the_child", text="x" * 1000)
    log.log_eval(1, val_loss=1.0)
    log.flush()
    assert not log.should_stop and not log.take_requests() and not log.is_live
    log.close()
"""

USES_A_METHOD_IT_KEPT = """
def in_the_child():
    log_step(1_000_000, train_loss=2.0)
    log_step(1_000_001, train_loss=float("nan"))
"""

USES_A_COPY = """
import copy, pickle

def in_the_child():
    for other in (copy.copy(log), copy.deepcopy(log), pickle.loads(pickle.dumps(log))):
        other.log_step(1_000_000, train_loss=2.0)
        other.close()
"""


FORKS_IN_THE_MIDDLE_OF_A_CALL = """
# Another thread is in the middle of a call when this one forks: what it holds stays held for ever in the child.
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
log_step = log.log_step
log.log_step(0, train_loss=1.0)
holds, may_go_on = threading.Event(), threading.Event()

def hold():
    with log._run.pipeline.record_queue.lock:
        holds.set()
        may_go_on.wait()

thread = threading.Thread(target=hold)
thread.start()
holds.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    in_the_child()
    sys.exit(0)
status = os.waitpid(child, 0)[1]
may_go_on.set()
thread.join()
log.log_step(1, train_loss=1.0)
log.close()
sys.exit(7 if status == 0 else f"the child ended with status {status}")
"""


@pytest.mark.parametrize(
    "in_the_child",
    [USES_THE_LOGGER, USES_A_METHOD_IT_KEPT, USES_A_COPY],
    ids=["uses the logger", "uses a method it kept", "uses a copy"],
)
def test_a_child_forked_in_the_middle_of_a_call_does_not_hang_and_writes_nothing(
    tmp_path, start, in_the_child
):
    ended = start(in_the_child + FORKS_IN_THE_MIDDLE_OF_A_CALL, tmp_path).end()

    assert ended.code == 7, ended.err
    records = whole_run(tmp_path / "run", steps=range(2))
    assert len(with_event(records, "start")) == len(with_event(records, "end")) == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]


FORKS = longer(60, 500)


@pytest.mark.slow
def test_forks_beside_a_thread_that_logs_disturb_nothing(tmp_path, start, record_property):
    ended = start(USES_THE_LOGGER + FORKS_WHILE_A_THREAD_LOGS, tmp_path, FORKS).end(200)

    assert ended.code == 7, ended.err
    record_property(
        "measured",
        f"{FORKS} forks, {ended.number('ended_badly'):.0f} children hung, "
        f"slowest call {ended.number('slowest') * 1e3:.1f} ms",
    )
    assert ended.number("ended_badly") == 0, ended.err
    assert ended.number("slowest") < LONGEST_PAUSE_S
    records = whole_run(tmp_path / "run", steps=range(FORKS))
    ours = {"start", "environment", "system", "step", "from_the_thread", "finding", "end"}
    assert {record["event"] for record in records} <= ours
    assert len(with_event(records, "start")) == len(with_event(records, "end")) == 1


LOADS_DATA_IN_WORKERS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __init__(self, log):
        self.log = log

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.log.log_step(1_000_000 + index, train_loss=2.0)
        self.log.log_event("from_a_worker", index=index)
        return torch.tensor(float(index))

if __name__ == "__main__":
    log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
    workers = 2 if sys.argv[2] == "fork" else 1
    loader = DataLoader(Numbers(log), batch_size=4, num_workers=workers, multiprocessing_context=sys.argv[2])
    total, step = 0.0, 0
    for epoch in range(int(sys.argv[3])):
        for batch in loader:
            total += batch.sum().item()
            log.log_step(step, train_loss=total)
            step += 1
    log.close()
    print(f"total={total}")
    sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "epochs"), [("fork", longer(1, 5)), *([("spawn", 1), ("forkserver", 1)] if is_long() else [])]
)
def test_data_loader_workers_that_hold_the_logger_do_not_disturb_it(tmp_path, start, method, epochs):
    ended = start(LOADS_DATA_IN_WORKERS, tmp_path, method, epochs, imported=A_TRAINING).end(220)

    assert ended.code == 7, ended.err
    assert ended.number("total") == 780 * epochs
    records = whole_run(tmp_path / "run", steps=range(10 * epochs))
    assert not with_event(records, "from_a_worker")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"], (
        "a worker made no run of its own"
    )
    assert ended.out.count("[telemetry] Logging to") == 1


LEAVES_A_CHILD_BEHIND = """
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
child = os.fork()
if child == 0:
    time.sleep(120)
    os._exit(0)
print(f"child={child}", flush=True)
step = 0
while True:
    log.log_step(step, train_loss=1.0)
    acknowledged.set(step)
    step += 1
    time.sleep(0.0005)
"""

RESUMES_AND_ENDS = """
TelemetryLogger("run", log_dir=sys.argv[1], resume=True).close()
"""


@pytest.mark.parametrize("by", ["repair", "the next session"])
def test_a_worker_that_outlives_its_killed_parent_does_not_keep_the_run_from_being_recovered(
    tmp_path, start, by
):
    child = start(LEAVES_A_CHILD_BEHIND, tmp_path)
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


TRAINS_IN_A_PROCESS = """
import multiprocessing

def train(folder, how):
    log = TelemetryLogger("run", log_dir=folder, log_every=1)
    for step in range(500):
        log.log_step(step, train_loss=1.0)
    if how == "raises":
        raise RuntimeError("no more memory")
    if how == "exits with 3":
        sys.exit(3)

if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[2]).Process(target=train, args=(sys.argv[1], sys.argv[3]))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("how", "code", "status"),
    [("returns", 0, "finished"), ("raises", 1, "failed"), ("exits with 3", 3, "failed")],
)
def test_training_in_a_process_of_multiprocessing_ends_properly(tmp_path, start, method, how, code, status):
    ended = start(TRAINS_IN_A_PROCESS, tmp_path, method, how).end()

    assert ended.code == code, ended.err
    records = whole_run(tmp_path / "run", steps=range(500))
    (end,) = with_event(records, "end")
    assert end["status"] == read_manifest(tmp_path / "run").latest.status == status


def test_a_forked_child_may_log_a_run_of_its_own(tmp_path, start):
    ended = start(
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
    ).end()

    assert ended.code == 0, ended.err
    whole_run(tmp_path / "parent", steps=range(200))
    whole_run(tmp_path / "child", steps=range(50))


FORKS_WHILE_EACH_LOCK_IS_HELD = """
# Whatever lock of ours another thread holds at the moment of a fork is held for ever in the child.
import asyncio, copy, gc, json, logging, multiprocessing, pickle
from tests.faults.all_features import call_everything

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
call_everything(log, 0)
log.flush()
ours = "toolkit."
KINDS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event)

def locks_within(thing, path, seen, found):
    "Every lock that can be reached from `thing` through objects of ours."
    if id(thing) in seen or len(path) > 12:
        return
    seen.add(id(thing))
    if isinstance(thing, threading.Event):
        thing = thing._cond
    if isinstance(thing, threading.Condition):
        thing = thing._lock
    if isinstance(thing, KINDS):
        found.setdefault(id(thing), (".".join(path), thing))
        return
    if isinstance(thing, dict):
        inside = list(thing.items())
    elif isinstance(thing, (list, tuple, set)):
        inside = list(enumerate(thing))
    elif type(thing).__module__.startswith(ours):
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        inside = [(name, getattr(thing, name, None)) for name in [*getattr(thing, "__dict__", {}), *slots]]
    else:
        return
    for name, value in inside:
        locks_within(value, [*path, str(name)], seen, found)

found = {}
seen = set()
locks_within(log, ["log"], seen, found)
for name, module in list(sys.modules.items()):
    if name.startswith(ours):
        for attribute, value in list(vars(module).items()):
            locks_within(value, [name, attribute], seen, found)

def held(lock):
    taken, let_go = threading.Event(), threading.Event()

    def hold():
        # A bell that nobody rang is a lock that is held already.
        is_ours = lock.acquire(timeout=0.05)
        taken.set()
        let_go.wait()
        if is_ours:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    return thread, let_go

def in_the_child():
    call_everything(log, 1_000_000)
    log.flush()
    for other in (copy.copy(log), copy.deepcopy(log), pickle.loads(pickle.dumps(log))):
        call_everything(other, 1_000_000)
        other.close()
    log.close()
    with TelemetryLogger("own", log_dir=sys.argv[1] + "/of-the-child", system=False) as own:
        own.log_step(1, train_loss=1.0)

hung = []
for path, lock in found.values():
    thread, let_go = held(lock)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        in_the_child()
        os._exit(0)
    let_go.set()
    thread.join()
    if os.waitpid(child, 0)[1]:
        hung.append(path)
print("HUNG", json.dumps(hung))
print(f"locks={len(found)}")

# Everything else that begins a process or a task, with the logger in its hands.
import subprocess

def work(given):
    call_everything(given, 2_000_000)
    return given.is_live

def keep(given):
    global kept
    kept = given

def work_with_kept(_):
    return work(kept)

context = multiprocessing.get_context("fork")
with context.Pool(2, initializer=keep, initargs=(log,)) as pool:
    live = pool.map(work_with_kept, range(4)) + pool.map(work, [log] * 2)
print(f"live_in_pools={sum(live)}")
done = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True)
spawned = os.posix_spawn(sys.executable, [sys.executable, "-c", "raise SystemExit(5)"], os.environ)
print(f"spawned={os.waitstatus_to_exitcode(os.waitpid(spawned, 0)[1]) + done.returncode}")

async def task(number):
    with log.span("a task", number=number):
        await asyncio.sleep(0.001)
        log.log_event("from_a_task", number=number)

async def tasks():
    await asyncio.gather(*(task(number) for number in range(50)))

asyncio.run(tasks())
log.close()
sys.exit(7)
"""


def test_a_child_forked_while_any_lock_of_ours_is_held_does_not_hang(tmp_path, start, record_property):
    ended = start(FORKS_WHILE_EACH_LOCK_IS_HELD, tmp_path).end(220)

    assert ended.code == 7, ended.err
    record_property("measured", f"{ended.number('locks'):.0f} locks, each held at a fork, 0 children hung")
    assert ended.number("locks") >= 10
    assert "HUNG []" in ended.out, ended.out
    assert ended.number("live_in_pools") == 0, "a logger in another process does nothing"
    assert ended.number("spawned") == 5
    records = whole_run(tmp_path / "run")
    assert not [record for record in with_event(records, "step") if record["global_step"] >= 1_000_000]
    assert sorted(record["number"] for record in with_event(records, "from_a_task")) == list(range(50))
