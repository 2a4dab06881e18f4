"""Forks while another thread is in the middle of a call: what it holds stays held for ever in the child.

python fork_in_the_middle_of_a_call.py LOG_DIR logger|method|copy
"""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys
import threading

from tests.faults.child_program import TelemetryLogger, use_in_a_child


def use_a_method():
    log_step(1_000_000, train_loss=2.0)
    log_step(1_000_001, train_loss=float("nan"))


def use_a_copy():
    for other in (copy.copy(log), copy.deepcopy(log), pickle.loads(pickle.dumps(log))):
        other.log_step(1_000_000, train_loss=2.0)
        other.close()


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
    {"logger": lambda: use_in_a_child(log), "method": use_a_method, "copy": use_a_copy}[sys.argv[2]]()
    sys.exit(0)
status = os.waitpid(child, 0)[1]
may_go_on.set()
thread.join()
log.log_step(1, train_loss=1.0)
log.close()
sys.exit(7 if status == 0 else f"the child ended with status {status}")
