"""A run on several nodes: its parts are found by their run id, and its ranks wherever they wrote."""

import json
import os

import pytest

from tests.two_nodes import bring_together, write_two_nodes
from toolkit.telemetry.runfolder.layout import is_safe_name
from toolkit.telemetry.runfolder.node_folders import part_name, parts_of, record_files


@pytest.mark.parametrize(
    ("name", "node", "folder"),
    [
        ("run", "node17", "run@node17"),
        ("run-2", "gpu-01.cluster.example", "run-2@gpu-01.cluster.example"),
        ("run", "../../etc", "run@etc"),
        ("run", "", "run@run"),
    ],
)
def test_a_part_has_the_name_of_its_run_and_of_its_node(name, node, folder):
    assert part_name(name, node) == folder


def test_long_names_of_nodes_stay_different_and_safe():
    nodes = [f"{'a-very-long-name-of-a-node' * 8}-{number}" for number in range(20)]
    names = {part_name("r" * 100, node) for node in nodes}

    assert len(names) == len(nodes)
    assert all(is_safe_name(f"{name}-99") for name in names)


@pytest.fixture
def two_nodes(monkeypatch, tmp_path):
    return write_two_nodes(monkeypatch, tmp_path / "a", tmp_path / "b")


def test_the_parts_are_found_from_within_the_folder_and_after_it_was_renamed(two_nodes, monkeypatch):
    whole, part = two_nodes
    bring_together(part, whole.parent)
    monkeypatch.chdir(whole)
    assert [*record_files(type(whole)("."))] == [0, 1, 2, 3]

    monkeypatch.chdir("/")
    renamed = whole.rename(whole.with_name("other"))
    assert [*record_files(renamed)] == [0, 1, 2, 3]


def test_the_part_of_another_run_and_links_do_not_count(two_nodes, monkeypatch, tmp_path):
    whole, part = two_nodes
    os.symlink(part, whole.parent / "run@B")
    assert parts_of(whole) == ()
    (whole.parent / "run@B").unlink()
    moved = bring_together(part, whole.parent)
    about = json.loads((moved / "run.json").read_text())
    (moved / "run.json").write_text(json.dumps({**about, "run_id": "another"}))
    assert parts_of(whole) == ()

    (moved / "run.json").write_text(json.dumps(about))
    (moved / "ranks").rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", moved / "ranks")
    assert [*record_files(whole)] == [0, 1]
