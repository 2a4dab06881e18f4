"""What every test starts from: no trace of the machine's own training jobs, and no way out to anyone's account."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from itertools import chain

import pytest
from hypothesis import HealthCheck, settings

from tests.leftovers import recover_only_runs_below, remove_journals_of_runs_below
from tests.lengths import is_long, longer
from tests.same_worker import make_scheduler, when_it_begins
from tests.time_limit import pytest_timeout_cancel_timer, pytest_timeout_set_timer
from tests.waiting import TIME_TO_CLOSE_S
from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.runfolder.records import OF_THE_JOB

__all__ = ["pytest_timeout_cancel_timer", "pytest_timeout_set_timer"]

# Read once, when a framework is imported: nothing is fetched from anywhere.
os.environ["HF_HUB_OFFLINE"] = "1"

# The tests of a process would keep the tests as their code, again and again; those about it ask for it.
os.environ["TELEMETRY_CODE"] = "0"

# With it every word of a print is a write of its own, and two ranks that share a pipe cut each other's lines.
os.environ.pop("PYTHONUNBUFFERED", None)

# Hundreds of processes import the same files: they are compiled once, also where the machine would have it otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A `make` that a test starts would print and do other things as a part of `make test` than by itself.
for _name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ARGS"):
    os.environ.pop(_name, None)

# A shell starts what runs in the background so that it ignores Ctrl-C, and so would every program of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Several threads for a few numbers wait for each other, and for the tests of other workers.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is no reason to fail: no time limits. Nor is chance: `make faults` looks for new examples.
settings.register_profile(
    "usual",
    max_examples=longer(25, 100),
    deadline=None,
    derandomize=not is_long(),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("usual")

_ABOUT_OTHER_JOBS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "SLURM_PROCID",
    *chain(*OF_THE_JOB.values()),
    "OMPI_COMM_WORLD_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_MAIN = sys.modules["__main__"]


@pytest.fixture
def clock():
    """A clock that only the test moves."""
    return ManualClock()


@pytest.fixture(autouse=True)
def _a_machine_without_jobs_or_accounts(monkeypatch):
    for name in _ABOUT_OTHER_JOBS:
        monkeypatch.delenv(name, raising=False)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture(autouse=True)
def _patient_ends(monkeypatch):
    monkeypatch.setitem(TelemetryOptions.__init__.__kwdefaults__, "close_timeout", TIME_TO_CLOSE_S)


@pytest.fixture(autouse=True)
def _state_of_the_process_is_restored():
    """Undo what a library or a script does to its whole process: the next test of this worker expects a new one."""
    loggers = [logging.getLogger(name) for name in ("toolkit", "toolkit.telemetry")]
    before = [(log, log.level, log.disabled, log.propagate) for log in loggers]
    disabled = logging.root.manager.disable
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    hooks = sys.excepthook, threading.excepthook
    # A page that is run in this process takes the place of the main module, which a process that is started would run.
    sys.modules["__main__"] = _MAIN
    yield
    for log, level, is_disabled, propagate in before:
        log.setLevel(level)
        log.disabled, log.propagate = is_disabled, propagate
    logging.disable(disabled)
    for number, handler in handlers.items():
        # None means a handler that was not set from Python.
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    sys.excepthook, threading.excepthook = hooks
    sys.modules["__main__"] = _MAIN


_ABOUT_DISKS = ("faults", "load")


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(request, monkeypatch):
    """Sync nothing: a sync is seen after a power cut only, and it takes half of the time of a test with a run.

    Tests of faults and of load, the processes that tests start, and `make faults` sync.
    """
    if not is_long() and _folder(request.node) not in _ABOUT_DISKS:
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                monkeypatch.setattr(os, name, lambda descriptor: os.fstat(descriptor) and None)


_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)
]


@pytest.fixture(scope="session", autouse=True)
def _no_journals_left_in_shared_memory(tmp_path_factory):
    """Leave what others' killed processes left behind, and take away that of these tests in the end."""
    recover_only_runs_below(tmp_path_factory.getbasetemp())
    yield
    remove_journals_of_runs_below(tmp_path_factory.getbasetemp())


def pytest_configure():
    # A shell that runs the tests in the background has these ignored, and what is ignored stays so in every child.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") == "loadfile":
        return make_scheduler(config, log)
    return None


def pytest_collection_modifyitems(items):
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    for item in items:
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))
        if not is_root and item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="only root may mount file systems"))
    items.sort(key=lambda item: when_it_begins(item.nodeid))


def pytest_collection_finish():
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    _leave_out_of_garbage_collection()


def pytest_runtest_logfinish():
    if len(sys.modules) > _frozen_modules + 200:
        _leave_out_of_garbage_collection()


_frozen_modules = 0


def _leave_out_of_garbage_collection():
    # Many tests, and every training of a Trainer, end with a collection of garbage: what was imported is not looked
    # through each time.
    global _frozen_modules
    gc.collect()
    gc.freeze()
    _frozen_modules = len(sys.modules)


def _folder(item):
    return item.nodeid.split("/")[1]


def _has_gpu():
    import torch

    return torch.cuda.is_available()
