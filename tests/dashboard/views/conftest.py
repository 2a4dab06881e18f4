"""What page tests share: log directories that the dashboard is pointed at, and no store left over from another test."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import subprocess

import pytest

pytest.importorskip("streamlit")

import streamlit as st

from dashboard import charts, components
from dashboard.settings import DashboardSettings
from toolkit.telemetry import runs
from toolkit.telemetry.runfolder import status
from toolkit.telemetry.runs.columns.completion_reader import CompletionReader
from toolkit.telemetry.runs.listing import foreign_runs
from toolkit.telemetry.runs.sources.local_store import LocalStore

_PATIENCE_S = 60.0


@pytest.fixture(scope="session", autouse=True)
def _every_module_is_imported():
    """Import what pages import before any test replaces a name.

    A module that is first imported while a name is replaced would keep the replacement for every later test.
    """
    for package in (runs, charts, components):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


@pytest.fixture(autouse=True)
def _no_search_for_components(monkeypatch):
    # Each new tab would read the metadata of every installed package for components; ours comes with its page.
    monkeypatch.setattr("streamlit.components.v2.manifest_scanner.scan_component_manifests", list)


@pytest.fixture(autouse=True)
def _all_the_time_that_it_takes(monkeypatch):
    """Have pages drawn from whole logs, however slow the machine.

    A page that has waited long enough is drawn from a part and comes back for the rest, which the tab of these
    tests does not. Where a page does not wait at all, it still does not.
    """
    waiting = (
        (LocalStore, ("refresh", "spans", "examine", "time_spent", "rank_grid")),
        (CompletionReader, ("find",)),
    )
    for owner, names in waiting:
        for name in names:
            monkeypatch.setattr(owner, name, _patient(getattr(owner, name)))
    for name in ("_FIRST_WAIT_S", "_WITH_OURS_S"):
        monkeypatch.setattr(foreign_runs, name, _PATIENCE_S)
    # Nor is a live run silent by the time its page is drawn; one that is stalled has been so for a minute.
    monkeypatch.setattr(status, "HEARTBEAT_TIMEOUT_S", 50.0)


def _patient(method):
    @functools.wraps(method)
    def wait(*args, wait_s=_PATIENCE_S, **options):
        return method(*args, wait_s=_PATIENCE_S if wait_s else 0.0, **options)

    return wait


@pytest.fixture(autouse=True)
def _no_store_of_another_test():
    st.cache_resource.clear()
    yield
    st.cache_resource.clear()


@pytest.fixture
def look_at(monkeypatch, tmp_path):
    """Point the dashboard at log directories."""

    def point(*log_dirs, read_only=False):
        settings = DashboardSettings(log_dirs=log_dirs, cache_dir=tmp_path / "cache", read_only=read_only)
        monkeypatch.setattr(DashboardSettings, "in_use", settings)
        st.cache_resource.clear()

    return point


@pytest.fixture
def logs(tmp_path, look_at):
    """A log directory without runs that the dashboard looks at."""
    folder = tmp_path / "logs"
    folder.mkdir()
    look_at(folder)
    return folder


@pytest.fixture(scope="module")
def training():
    """A process that lives as long as the tests of this file: the run that is asked."""
    child = subprocess.Popen(["sleep", "600"])
    yield child.pid
    child.kill()
    child.wait()
