"""Prints what the sampler makes of a driver that fails in each of the given ways, and of one that lies.

python ask_a_sick_driver.py CASES
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
import time

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.environment import _nvidia_accelerators
from toolkit.telemetry.logger.machine.samplers.nvml import NvmlSampler
from toolkit.telemetry.logger.machine.samplers.sampler import NothingToSample

ctypes.CDLL(os.environ["DRIVER"])


def sampled(sickness):
    "What two rounds under `sickness` and what follows say, and how many failures were counted."
    with open(os.environ["SICK_DRIVER"], "w") as file:
        file.write(sickness)
    guard = Guard()
    sampler = NvmlSampler(guard=guard, environ={})
    values = {}
    for _ in range(2):
        with guard.catch("sampling"):
            try:
                values = dict(sampler.sample())
            except NothingToSample:
                values = {"nothing": 1}
    with guard.catch("describing"):
        _nvidia_accelerators()
    with guard.catch("closing"):
        sampler.close()
    return values, guard.total


logging.disable(logging.CRITICAL)
well, failures = sampled("")
print(json.dumps({"well": well, "failures": failures}))
for function, code in json.loads(sys.argv[1]):
    values, failures = sampled(f"{function} {code}\n")
    wrong = {name: value for name, value in values.items() if name != "nothing" and value != well.get(name)}
    print(
        json.dumps(
            {"function": function, "code": code, "kept": len(values), "wrong": wrong, "failures": failures}
        )
    )
began = time.monotonic()
values, failures = sampled("lies 1\n")
print(json.dumps({"lies": values, "failures": failures, "seconds": time.monotonic() - began}))
