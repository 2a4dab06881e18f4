"""Trains as one of several ranks that agree on the step of each action, and writes down what it did.

python agree_on_steps.py RANK SIZE ADDRESS ROUNDS OUT
"""

from __future__ import annotations

import datetime
import json
import os
import random
import sys
import threading
import time

import torch
import torch.distributed as dist

from tests.waiting import wait_until
from toolkit.telemetry.core.clock import SystemClock
from toolkit.telemetry.core.ranks import process_group_store
from toolkit.telemetry.logger.control.consensus import StepConsensus

rank, size, address, rounds, out = (
    int(sys.argv[1]),
    int(sys.argv[2]),
    sys.argv[3],
    int(sys.argv[4]),
    sys.argv[5],
)
torch.set_num_threads(1)
patience = datetime.timedelta(seconds=120)
if rank == 0:
    # Rank 0 takes a free port and writes it down: one that was looked up before may be taken by now.
    store = dist.TCPStore("127.0.0.1", 0, None, True, timeout=patience, wait_for_workers=False)
    with open(address + ".part", "w") as file:
        file.write(str(store.port))
    os.replace(address + ".part", address)
else:
    wait_until(lambda: os.path.exists(address))
    with open(address) as file:
        port = int(file.read())
    store = dist.TCPStore("127.0.0.1", port, None, False, timeout=patience)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
agreement = StepConsensus(
    process_group_store(), rank, size, clock=SystemClock(), prefix="telemetry", lead_s=0.08
)
chance = random.Random(rank)
taken, running, step, longest = [], True, -1, 0.0


def background():
    proposed = 0
    while running:
        if rank == 0 and proposed == len(taken) < rounds and chance.random() < 0.3:
            agreement.propose(f"stop-{proposed}", 0.004)
            proposed += 1
        agreement.poll()
        time.sleep(chance.uniform(0.005, 0.03))


thread = threading.Thread(target=background)
thread.start()
value = torch.ones(1)
while len(taken) < rounds:
    step += 1
    if rank == step // 50 % size:  # the slow one changes
        time.sleep(chance.uniform(0.0, 0.008))
    dist.all_reduce(value)
    value.fill_(1.0)
    started = time.monotonic()
    actions = agreement.due(step)
    longest = max(longest, time.monotonic() - started)
    taken += [(action, step) for action in actions]
running = False
thread.join()
# The store goes with rank 0; a rank that the machine holds up for some seconds still has to read the last step.
agreement.close(timeout_s=60.0)
with open(out, "w") as file:
    json.dump(
        {"taken": taken, "steps": step, "longest": longest, "given_up": agreement.take_given_up()}, file
    )
# No last barrier: each rank simply leaves, as a stopped training does.
