"""Forks while another thread holds a lock of ours, for each lock: it is held for ever in the child.

python fork_while_each_lock_is_held.py LOG_DIR
"""

from __future__ import annotations

import asyncio
import copy
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading

from tests.faults.all_features import call_everything
from tests.faults.child_program import TelemetryLogger

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
call_everything(log, 0)
log.flush()
ours = "toolkit."
KINDS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event)


def locks_within(thing, path, seen, found):
    """Every lock that can be reached from `thing` through objects of ours."""
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
    taken, release = threading.Event(), threading.Event()

    def hold():
        # A bell that did not ring is a lock that is held already.
        is_ours = lock.acquire(timeout=0.05)
        taken.set()
        release.wait()
        if is_ours:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    return thread, release


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
    thread, release = held(lock)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        in_the_child()
        os._exit(0)
    release.set()
    thread.join()
    if os.waitpid(child, 0)[1]:
        hung.append(path)
print("HUNG", json.dumps(hung))
print(f"locks={len(found)}")

# Everything else that begins a process or a task, with the logger in its hands.


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
