"""Everything that the dashboard changes on disk passes one gate, and who no one let in gets past nothing."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("streamlit")


import dashboard
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
