"""Everything that the dashboard changes on disk passes one gate, and who nobody let in gets past nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

import streamlit as st

import dashboard
from dashboard.access.allow_list import AllowList
from dashboard.settings import DashboardSettings, PageAccess
from tests.dashboard.run_folders import write_run
from tests.dashboard.views.pages import is_well, open_page, said
from tests.lengths import longer

PACKAGE = Path(dashboard.__file__).parent
STORE = "data/local_store.py"

# What changes the folder of a run, the trash or the cache.
CHANGES = {
    "write_request",
    "write_labels",
    "trash.move_to_trash",
    "trash.restore",
    "trash.empty_trash",
    "self.cache.clear",
}
# Labels of other tools' runs are in the user's own folder.
KEPT_APART = {"data/foreign_runs.py": {"write_labels"}}
GATED = {"ask", "label", "delete", "restore", "empty_trash", "empty_cache"}
# What would change a file without any of those.
BARE = {
    "write_text",
    "write_bytes",
    "unlink",
    "rmtree",
    "mkdir",
    "makedirs",
    "rmdir",
    "touch",
    "mkstemp",
    "replace_file",
    "os.rename",
    "os.replace",
    "symlink_to",
}


def called_in(tree):
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_every_change_of_a_file_asks_the_gate_first():
    tree = ast.parse((PACKAGE / STORE).read_text(encoding="utf-8"))
    changing = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and called_in(node) & CHANGES
    ]

    assert set.union(*map(called_in, changing)) >= CHANGES, "something is changed in another way by now"
    assert {function.name for function in changing} == GATED
    for function in changing:
        assert ast.unparse(function.body[1]) == "self._require_write_access()", function.name


def test_every_change_in_the_engine_asks_the_gate_first():
    tree = ast.parse((PACKAGE / "data/clickhouse_store.py").read_text(encoding="utf-8"))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    changing = {"self._requests.ask", "self._write_labels", "self._insert_labels"}

    found = {name for name, function in functions.items() if called_in(function) & changing}
    found.remove("_write_labels")  # whose callers are in the list
    assert found == {"ask", "label", "delete", "restore", "set_project_settings"}
    assert {name for name, function in functions.items() if "self._link.insert" in called_in(function)} == {
        "_insert_labels"
    }
    for name in (*found, "empty_trash"):
        assert ast.unparse(functions[name].body[1]) == "self._require_write_access()", name


def test_every_change_of_what_we_keep_about_other_tools_runs_asks_the_gate_first():
    tree = ast.parse((PACKAGE / "data/any_format_store.py").read_text(encoding="utf-8"))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    changing = {"self._foreign.label", "self._foreign.hide", "self._foreign.show"}

    found = {name for name, function in functions.items() if called_in(function) & changing}
    assert found == {"label", "delete", "restore"}
    for name in (*found, "ask"):
        assert ast.unparse(functions[name].body[1]) == "self._require_write_access()", name


def test_no_page_changes_a_file_by_itself():
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE).as_posix()
        called = called_in(ast.parse(path.read_text(encoding="utf-8")))
        by_name = {name.rpartition(".")[2] for name in called}
        if inside != STORE:
            assert not called & CHANGES - KEPT_APART.get(inside, set()), inside
            assert not {name for name in called if name.endswith("cache.clear")}, inside
        if not inside.startswith("data/"):
            assert not (called | by_name) & BARE, inside


@pytest.mark.parametrize(
    "access",
    [
        PageAccess(by="token"),
        PageAccess(by="login", allow_list=AllowList(operators=("test@example.com", "ann@lab.example"))),
    ],
    ids=["token", "login"],
)
@pytest.mark.parametrize("page", ["runs", "overview", "config_notes", "settings_page"][:: longer(3, 1)])
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
