"""The page shows a run and its parts as one run, and a part alone as a part."""

import pytest

from dashboard.data.local_store import LocalStore
from dashboard.data.run_store import Refused
from tests.two_nodes import bring_together, write_two_nodes


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
    assert (curve.total, curve.low, curve.high) == (30, 2.0, 2.0)
    grid = store.rank_grid("run", "sec_per_step", wait_s=120.0)
    assert grid.ranks == (0, 1, 2, 3)
    assert grid.typical().tolist() == [1.0, 1.0, 1.0, 2.0]


def test_a_part_alone_is_listed_as_a_part_with_the_curves_of_its_first_rank(two_nodes):
    _, part = two_nodes
    store = LocalStore([part.parent], cache_dir=None)

    (card,) = store.list_runs().cards
    assert (card.key, card.name) == ("run@B", "part of run on node A: ranks 2 to 3")
    assert (card.status.name, card.step, card.problem) == ("finished", 29, None)
    assert store.ranks("run@B") == [2, 3]
    store.refresh("run@B")
    curve = store.series("run@B", "train_loss")
    assert (curve.total, curve.low, curve.high) == (30, 3.0, 3.0)
    with pytest.raises(Refused, match="a part of a run"):
        store.ask("run@B", {"log_every": 50})
