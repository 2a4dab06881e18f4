"""The page shows a run and its parts as one run, and a part alone as a part."""

import os
import shutil

import pytest

from tests.two_nodes import bring_together, write_two_nodes
from toolkit.telemetry.runfolder.node_folders import record_files
from toolkit.telemetry.runs.listing import run_folders
from toolkit.telemetry.runs.sources import local_store, rank_grid
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.store import Refused


@pytest.fixture
def two_nodes(monkeypatch, tmp_path):
    return write_two_nodes(monkeypatch, tmp_path / "a", tmp_path / "b")


def test_a_run_and_its_part_in_one_directory_are_one_run(two_nodes):
    whole, part = two_nodes
    bring_together(part, whole.parent)
    store = LocalStore([whole.parent], cache_dir=None)

    (card,) = store.list_runs().cards
    assert (card.key, card.name, card.problem) == ("run", "run", None)
    assert store.ranks("run") == [0, 1, 2, 3]
    store.refresh("run", rank=3)
    curve = store.series("run", "sec_per_step", rank=3)
    assert (curve.total, set(curve.segments[0].y.tolist())) == (30, {2.0})
    grid = store.rank_grid("run", "sec_per_step", wait_s=120.0)
    assert grid.ranks == (0, 1, 2, 3)
    assert grid.typical().tolist() == [1.0, 1.0, 1.0, 2.0]


def test_a_part_alone_is_listed_as_a_part_with_the_curves_of_its_first_rank(two_nodes):
    _, part = two_nodes
    store = LocalStore([part.parent], cache_dir=None)

    (card,) = store.list_runs().cards
    assert (card.key, card.name) == ("run@B", "part of run on node A: 2 ranks, 2 to 3")
    assert (card.status.name, card.step, card.problem) == ("finished", 29, None)
    assert store.ranks("run@B") == [2, 3]
    store.refresh("run@B")
    curve = store.series("run@B", "train_loss")
    assert (curve.total, set(curve.segments[0].y.tolist())) == (30, {3.0})
    with pytest.raises(Refused, match="a part of a run"):
        store.ask("run@B", {"log_every": 50})


def test_the_grid_follows_a_rank_that_moved_to_another_node(two_nodes, monkeypatch, tmp_path):
    monkeypatch.setattr(local_store, "_RANKS_EVERY_S", -1.0)
    monkeypatch.setattr(run_folders, "_SCAN_EVERY_S", -1.0)
    monkeypatch.setattr(rank_grid, "_LOOK_EVERY_S", -1e9)
    whole, part = two_nodes
    moved = shutil.copytree(part, whole.parent / "run@C")
    os.unlink(moved / "ranks" / "00003.jsonl")
    bring_together(part, whole.parent)
    store = LocalStore([whole.parent], cache_dir=None)
    assert store.rank_grid("run", "sec_per_step", wait_s=120.0).typical().tolist() == [1.0, 1.0, 1.0, 2.0]

    text = (moved / "ranks" / "00002.jsonl").read_text().replace('"sec_per_step":1.0', '"sec_per_step":5.0')
    (moved / "ranks" / "00003.jsonl").write_text(text)
    os.utime(moved / "ranks" / "00003.jsonl", (4e9, 4e9))

    assert store.rank_grid("run", "sec_per_step", wait_s=120.0).typical().tolist() == [1.0, 1.0, 1.0, 5.0]


@pytest.mark.parametrize("why", ["its name", "its owner"])
def test_a_folder_that_only_says_it_is_a_part_is_listed_by_itself(two_nodes, why):
    whole, part = two_nodes
    foreign = bring_together(part, whole.parent)
    if why == "its name":
        foreign = foreign.rename(whole.parent / "other@B")
    elif os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    else:
        os.chown(foreign, 12345, -1)
    store = LocalStore([whole.parent], cache_dir=None)

    assert {card.key for card in store.list_runs().cards} == {"run", foreign.name}
    assert store.ranks("run") == [0, 1]
    assert [*record_files(whole)] == [0, 1]
