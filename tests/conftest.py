"""What every test starts from: no trace of the machine's own training jobs, and no way out to anyone's account."""

from __future__ import annotations

import os
import signal

import pytest

# Read once, when a framework is imported: nothing is fetched from anywhere.
os.environ["HF_HUB_OFFLINE"] = "1"

_ABOUT_OTHER_JOBS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@pytest.fixture(autouse=True)
def _a_machine_without_jobs_or_accounts(monkeypatch):
    for name in _ABOUT_OTHER_JOBS:
        monkeypatch.delenv(name, raising=False)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def pytest_configure():
    # A shell that runs the tests in the background has these ignored, and what is ignored stays so in every child.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


_NEVER_TWO_AT_ONCE = ("browser", "faults")
"""Folders of tests that time out, or prove nothing, on a machine that is busy with another of them."""


def pytest_collection_modifyitems(items):
    for item in items:
        # Under `make test` two workers share the files; what a module sets up for its tests is set up once.
        folder = item.path.relative_to(item.config.rootpath / "tests").parts[0]
        group = "alone" if folder in _NEVER_TWO_AT_ONCE else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))
        if item.get_closest_marker("root") and not (hasattr(os, "geteuid") and os.geteuid() == 0):
            item.add_marker(pytest.mark.skip(reason="only root may mount file systems"))


def _has_gpu():
    import torch

    return torch.cuda.is_available()
