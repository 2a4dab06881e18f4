"""Prints what a process is set to that a run changed: at its import, while it ran, and after its end.

python process_settings.py LOG_DIR nothing|torch
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import decimal
import faulthandler
import gc
import locale
import logging
import multiprocessing
import os
import pickle
import random
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings

from tests.waiting import wait_until

FINDER = "toolkit.telemetry.integrations.reporting_names"

# NVIDIA's library keeps descriptors of its own once it was asked.
with contextlib.suppress(OSError):
    nvidia = ctypes.CDLL("libnvidia-ml.so.1")
    nvidia.nvmlInit_v2(), nvidia.nvmlShutdown()

if sys.argv[2] == "torch":
    import numpy
    import torch

    torch.set_num_threads(1)


def settings():
    fork, start = os.fork, threading.Thread.start
    found = {
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "wake-up descriptor": signal.set_wakeup_fd(-1),
        "timers": [signal.getitimer(which)[0] for which in (0, 1, 2)],
        "hooks": (
            sys.excepthook,
            threading.excepthook,
            sys.unraisablehook,
            sys.displayhook,
            sys.breakpointhook,
        ),
        "exits": (sys.exit, type(exit).__call__),
        "tracing": (sys.gettrace(), sys.getprofile(), threading._trace_hook, threading._profile_hook),
        "functions": (os.fork, os._exit, os.write, os.open, open, print, time.time, time.sleep, fork, start),
        "subprocess": (subprocess.Popen, socket.socket, pickle.dumps, ssl.create_default_context),
        "faulthandler": faulthandler.is_enabled(),
        "warnings": list(warnings.filters),
        "logging": (
            list(logging.root.handlers),
            logging.root.level,
            logging.raiseExceptions,
            logging.lastResort,
        ),
        "logging switched off": logging.root.manager.disable,
        "environment": dict(os.environ),
        "working folder": os.getcwd(),
        "umask": (lambda mask: (os.umask(mask), mask)[1])(os.umask(0o77)),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), list(gc.callbacks)),
        "locale": locale.setlocale(locale.LC_ALL),
        "decimal": repr(decimal.getcontext()),
        "recursion": sys.getrecursionlimit(),
        "switching": sys.getswitchinterval(),
        "path": (list(sys.path), list(sys.path_hooks), finders()),
        "streams": (sys.stdin, sys.stdout, sys.stderr, sys.stdout.write, sys.stderr.write),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "event loop": asyncio.events._event_loop_policy,
        "limits": [resource.getrlimit(which) for which in range(16)],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "random numbers": hash(random.getstate()),
        "descriptors": descriptors(),
        "children": multiprocessing.active_children(),
    }
    if "torch" in sys.modules:
        found |= {
            "torch": (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()),
            "determinism": (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark),
            "precision": torch.get_float32_matmul_precision(),
            "torch's random numbers": hash(torch.get_rng_state().numpy().tobytes()),
            "numpy's random numbers": hash(str(numpy.random.get_state(legacy=False))),
            "CUDA": torch.cuda.is_initialized(),
            "module hooks": [len(hooks) for hooks in module_hooks()],
        }
    return found


def finders():
    """Return the finders of modules, without ours: it waits for frameworks, and docs/guarantees.md names it."""
    found = [finder for finder in sys.meta_path if getattr(finder, "__module__", None) != FINDER]
    assert len(sys.meta_path) - len(found) <= 1
    return found


def module_hooks():
    module = torch.nn.modules.module
    return (module._global_forward_hooks, module._global_forward_pre_hooks, module._global_backward_hooks)


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            pass  # that of the listing itself, or another thread has just closed it
    return found


def different(one, other):
    return sorted(name for name in one if one[name] != other[name])


def main():
    settings()
    before = settings()
    from tests.faults.all_features import call_everything
    from toolkit.telemetry import TelemetryLogger

    after_import = settings()
    heavy = {"torch", "numpy", "pandas", "tensorboard", "wandb", "streamlit", "yaml", "pynvml"} & set(
        sys.modules
    )
    log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
    for step in range(0, 30, 10):
        call_everything(log, step)
    log.flush()
    during = settings()
    wait_until(lambda: log._run._sampling.latest().get("cpu_mem_rss_mb") is not None)
    log.close()
    deadline = time.monotonic() + 30
    while different(before, settings()) and time.monotonic() < deadline:
        time.sleep(0.05)  # a thread that was asked to end is still on its way
    after = settings()
    if sys.argv[2] != "torch":
        loaded = {"torch", "numpy", "pandas", "tensorboard", "wandb", "streamlit"} & set(sys.modules)
        print("LOADED", sorted(loaded | heavy))
    print("SETTINGS", len(before))
    print("IMPORT", different(before, after_import))
    print("DURING", different(before, during))
    print(
        "AFTER",
        different(before, after),
        {name: (before[name], after[name]) for name in different(before, after)},
    )


main()
