"""Child processes that never outlive their test, and no journals left behind in shared memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.faults.children import Child
from tests.faults.faulty_disk import FaultyDisk
from tests.leftovers import remove_journals_of_runs_below
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.runfolder.process import is_in_container


@pytest.fixture(autouse=True)
def _journal_of_children(monkeypatch):
    """Give the runs of a test's own process the journal that those of its children have."""
    if is_in_container():
        monkeypatch.setitem(TelemetryOptions.__init__.__kwdefaults__, "journal", "shm")


@pytest.fixture
def start(tmp_path, tmp_path_factory):
    """Start a child process; whatever is left of it goes when the test ends."""
    children: list[Child] = []
    folder = tmp_path_factory.mktemp("children")

    def start_child(program: str | Path, *arguments: object, **how) -> Child:
        children.append(Child(program, *arguments, cwd=tmp_path, folder=folder, **how))
        return children[-1]

    yield start_child
    for child in children:
        child.kill()


@pytest.fixture
def faulty_disk(tmp_path):
    """A disk that fails on request."""
    disk = FaultyDisk(tmp_path)
    disk.mount()
    yield disk
    disk.unmount()


@pytest.fixture
def mount_in_memory(tmp_path):
    """Mount a file system in memory, with options such as `size=1m`, and return its folder; it goes with the test."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"in-memory-{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(autouse=True)
def _no_journals_left_behind(tmp_path):
    yield
    remove_journals_of_runs_below(tmp_path)
