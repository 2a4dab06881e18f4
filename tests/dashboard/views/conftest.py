"""What page tests share: log directories that the dashboard is pointed at, and no store left over from another test."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit")

import streamlit as st

from dashboard.settings import DashboardSettings


@pytest.fixture(autouse=True)
def _no_search_for_components(monkeypatch):
    # Each new tab would read the metadata of every installed package for components; ours comes with its page.
    monkeypatch.setattr("streamlit.components.v2.manifest_scanner.scan_component_manifests", list)


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
        for name, value in settings.to_environment().items():
            monkeypatch.setenv(name, value)
        st.cache_resource.clear()

    return point


@pytest.fixture
def logs(tmp_path, look_at):
    """A log directory without runs that the dashboard looks at."""
    folder = tmp_path / "logs"
    folder.mkdir()
    look_at(folder)
    return folder
