"""Everything that the dashboard changes on disk passes one gate, and who no one let in gets past nothing."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

import streamlit as st

import dashboard
from dashboard.access.login import AllowList
from dashboard.settings import DashboardSettings, PageAccess
from tests.dashboard.views.pages import is_well, open_page, said
from tests.lengths import longer
from tests.made_runs import write_run
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore
from toolkit.telemetry.runs.sources.local_store import LocalStore

PACKAGE = Path(dashboard.__file__).parent
CHANGES = {"ask", "label", "delete", "restore", "empty_trash", "empty_cache", "set_project_settings"}
# What would change a file in another way.
BARE = {"write_text", "write_bytes", "unlink", "rmtree", "mkdir", "makedirs", "rmdir", "touch", "mkstemp"}
BARE |= {"replace_file", "os.rename", "os.replace", "symlink_to", "write_request", "write_labels"}


def called_in(tree):
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("store", [LocalStore, ClickHouseStore])
def test_every_change_asks_the_gate_first(store):
    defined = {name for name in CHANGES if name in vars(store)}

    assert {"ask", "label", "delete", "restore"} <= defined
    for name in defined:
        function = ast.parse(textwrap.dedent(inspect.getsource(getattr(store, name)))).body[0]
        if ast.unparse(function.body[-1]) == "return 0":
            continue  # There is no cache.
        assert "self._require_write_access()" in {ast.unparse(line) for line in function.body[:2]}, name


def test_no_page_changes_a_file_by_itself():
    for path in PACKAGE.rglob("*.py"):
        called = called_in(ast.parse(path.read_text(encoding="utf-8")))
        by_name = {name.rpartition(".")[2] for name in called}

        assert not (called | by_name) & BARE, path


@pytest.mark.parametrize(
    "access",
    [
        PageAccess(by="token"),
        PageAccess(by="login", allow_list=AllowList(operators=("test@example.com", "ann@lab.example"))),
    ],
    ids=["token", "login"],
)
@pytest.mark.parametrize("page", ["runs", "overview", "config_notes"][:: longer(3, 1)])
def test_an_unauthenticated_page_shows_the_login_and_nothing_else(tmp_path, monkeypatch, access, page):
    logs = tmp_path / "logs"
    logs.mkdir()
    write_run(logs, "secret-run")
    settings = DashboardSettings(log_dirs=(logs,), cache_dir=tmp_path / "cache", access=access)
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    st.cache_resource.clear()
    # Without a server in front there is neither a gate that wrote down rights nor a cookie that it signed.
    tab = open_page(page, "secret-run")
    shown = said(tab)

    assert is_well(tab)
    assert "secret-run" not in shown
    assert str(logs) not in shown
    assert "Log in" in shown or "Access denied" in shown
