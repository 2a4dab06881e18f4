"""Child processes that never outlive their test, and no journals left behind in shared memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.children import Child
from tests.faults.faulty_disk import FaultyDisk
from tests.faults.nursery import Nursery
from toolkit.runfolder.journal import journals_in, record_file_of, shared_memory_folders


@pytest.fixture
def start(tmp_path):
    """Start a child process; whatever is left of it goes when the test ends."""
    children: list[Child] = []

    def start_child(source: str, *arguments: object, **how) -> Child:
        child = Child(source, *arguments, cwd=tmp_path, **how)
        children.append(child)
        return child

    yield start_child
    for child in children:
        if child.process.poll() is None:
            child.process.send_signal(signal.SIGKILL)
        child.process.communicate()


@pytest.fixture(scope="session")
def nursery(tmp_path_factory):
    """Fork processes that need not be started from nothing."""
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


@pytest.fixture
def faulty_disk(tmp_path):
    """A disk that fails as it is told to."""
    disk = FaultyDisk(tmp_path)
    disk.mount()
    yield disk
    disk.unmount()


@pytest.fixture(autouse=True)
def _no_journals_left_behind(tmp_path):
    yield
    for folder in shared_memory_folders():
        for path in journals_in(folder):
            record_file = record_file_of(path)
            if record_file is not None and tmp_path.resolve() in Path(os.path.realpath(record_file)).parents:
                path.unlink(missing_ok=True)
