"""All ranks of a run as cells: every value counts once, in the cell of its step, however the files grew."""

import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from tests.made_runs import append, step_record, write_run
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runs.rank_grid import RankGrid
from toolkit.telemetry.runs.sources import local_store, rank_grid
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.sources.rank_grid import MAX_CELLS, RankCells

STEP_TIME = "sec_per_step"


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch):
    monkeypatch.setattr(rank_grid, "_LOOK_EVERY_S", -1e9)


@pytest.fixture
def store(tmp_path):
    return LocalStore([tmp_path], cache_dir=None)


def whole_grid(store, key="r", metric=STEP_TIME, buckets=64):
    grid = store.rank_grid(key, metric, buckets=buckets, wait_s=60.0)
    assert grid.fraction_read == 1.0
    return grid


def assert_same(one, other):
    assert (one.metric, one.ranks, one.first_step, one.cell_steps) == (
        other.metric,
        other.ranks,
        other.first_step,
        other.cell_steps,
    )
    np.testing.assert_array_equal(one.high, other.high)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-12)


def as_defined(points, buckets):
    """Return the grid of (rank, step, value), worked out as RunStore.rank_grid defines it and in no quick way."""
    counted = [point for point in points if math.isfinite(point[2]) and 0 <= point[1] < 2**53]
    if not counted:
        return RankGrid(metric=STEP_TIME)
    low, high = min(step for _, step, _ in counted), max(step for _, step, _ in counted)
    width = 1.0
    while high // width - low // width + 1 > buckets:
        width *= 2
    ranks = sorted({rank for rank, _, _ in counted})
    cells: dict[tuple[int, int], list[float]] = {}
    for rank, step, value in counted:
        cells.setdefault((ranks.index(rank), int(step // width - low // width)), []).append(value)
    mean = np.full((len(ranks), int(high // width - low // width) + 1), np.nan)
    highest = mean.copy()
    for place, values in cells.items():
        mean[place], highest[place] = math.fsum(values) / len(values), max(values)
    return RankGrid(
        metric=STEP_TIME,
        ranks=tuple(ranks),
        first_step=low // width * width,
        cell_steps=width,
        mean=mean,
        high=highest,
    )


steps = st.one_of(
    st.integers(0, 300), st.integers(-5, 2**60), st.floats(-10, 1e6, width=32), st.just(math.nan)
)
times = st.one_of(st.floats(0, 1e3, width=32), st.sampled_from([math.nan, math.inf, -math.inf]))
points = st.tuples(st.sampled_from([0, 1, 2, 617, 1023]), steps, times)


@settings(max_examples=longer(60, 400), deadline=None)
@given(
    blocks=st.lists(st.lists(points, max_size=20), max_size=6),
    buckets=st.sampled_from([1, 2, 7, 64, MAX_CELLS]),
)
def test_cells_that_grew_are_those_of_all_values_at_once(blocks, buckets):
    cells = RankCells()
    for block in blocks:
        for rank in {rank for rank, _, _ in block}:
            of_rank = [point for point in block if point[0] == rank]
            cells.add(
                rank, np.array([p[1] for p in of_rank], float), np.array([p[2] for p in of_rank], float)
            )

    flat = [(rank, float(step), value) for block in blocks for rank, step, value in block]
    assert_same(cells.grid(STEP_TIME, buckets), as_defined(flat, buckets))


def test_more_ranks_than_there_was_room_for_keep_their_values():
    cells = RankCells()
    for rank in range(300):
        cells.add(rank, np.array([0.0, 1.0]), np.array([rank, rank + 1.0]))

    grid = cells.grid(STEP_TIME, 64)
    assert grid.ranks == tuple(range(300))
    assert grid.high[:, 1].tolist() == [rank + 1.0 for rank in range(300)]


def test_a_pause_of_one_rank_does_not_make_it_the_slowest(tmp_path, store):
    def paused(step):
        return 60.0 if step in (10, 70) else 0.1

    write_run(tmp_path, "r", curves={STEP_TIME: paused}, ranks={1: {STEP_TIME: lambda step: 0.11}})

    grid = whole_grid(store)

    assert grid.slowest(1)[0].rank == 1
    assert grid.high[0].max() == 60.0


def test_what_a_rank_appends_is_added_and_nothing_is_read_twice(tmp_path, store):
    folder = write_run(tmp_path, "r", curves={STEP_TIME: float}, ranks={1: {STEP_TIME: float}})
    before = whole_grid(store)
    append(
        folder, [step_record(step, sec_per_step=9.0) for step in range(100, 400)], path=rank_file(folder, 1)
    )
    write_at = rank_file(folder, 2)
    append(folder, [step_record(5, sec_per_step=1.0)], path=write_at)

    after = whole_grid(store)

    assert before.ranks == (0, 1)
    assert after.ranks == (0, 1, 2)
    assert_same(after, whole_grid(LocalStore([tmp_path], cache_dir=None)))


def test_a_file_that_was_replaced_is_read_again(tmp_path, store):
    folder = write_run(tmp_path, "r", curves={STEP_TIME: float}, ranks={1: {STEP_TIME: lambda step: 5.0}})
    assert whole_grid(store).high[1].max() == 5.0
    rank_file(folder, 1).unlink()
    append(folder, [step_record(5, sec_per_step=1.0)], path=rank_file(folder, 1))

    store.rank_grid("r", STEP_TIME)

    assert_same(whole_grid(store), whole_grid(LocalStore([tmp_path], cache_dir=None)))
    assert np.nanmax(whole_grid(store).high[1]) == 1.0


def test_without_time_it_reads_a_part_and_says_how_much(tmp_path, store):
    write_run(
        tmp_path, "r", curves={STEP_TIME: float}, ranks={rank: {STEP_TIME: float} for rank in range(1, 20)}
    )

    first = store.rank_grid("r", STEP_TIME, wait_s=0.0)
    fractions = [store.rank_grid("r", STEP_TIME, wait_s=0.0).fraction_read for _ in range(25)]

    assert 0.0 < first.fraction_read < 1.0
    assert len(first.ranks) < 20
    assert_same(whole_grid(store), whole_grid(LocalStore([tmp_path], cache_dir=None)))
    assert fractions == sorted(fractions)


def test_many_tabs_ask_at_once_and_none_waits_for_ever(tmp_path, store, monkeypatch):
    monkeypatch.setattr(local_store, "_RANKS_BUDGET", 1)
    for name in ("a", "b"):
        write_run(
            tmp_path,
            name,
            curves={STEP_TIME: float},
            ranks={rank: {STEP_TIME: float} for rank in range(1, 9)},
        )
    found = []

    def look():
        for _ in range(20):
            for key in ("a", "b"):
                found.append(store.rank_grid(key, STEP_TIME, wait_s=60.0).metric)

    threads = [threading.Thread(target=look, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert len(found) == 160


def test_any_metric_can_be_asked_for(tmp_path, store):
    write_run(
        tmp_path,
        "r",
        [
            {"event": "system", "session": 1, "global_step": 3, "gpu/0/util": 50},
            {"event": "system", "session": 1, "gpu/0/util": 99},
            {"event": "epoch", "session": 1, "global_step": 4, "epoch": 1, "loss": 2.0},
            {"event": "step", "session": 1, "global_step": 4, "loss": 7.0, "naïve ☃": True, "text": "1.5"},
            {"event": "step", "session": 1, "global_step": "5", "loss": 8.0},
            {"event": ["step"], "session": 1, "global_step": 5, "loss": 9.0},
            {"event": "anything", "session": 1, "global_step": 5, "loss": 9.0},
        ],
    )

    assert whole_grid(store, metric="gpu/0/util").high.tolist() == [[50.0]]
    assert whole_grid(store, metric="epoch/loss").high.tolist() == [[2.0]]
    assert whole_grid(store, metric="loss").high.tolist() == [[7.0]]
    assert whole_grid(store, metric="naïve ☃").high.tolist() == [[1.0]]
    for name in ("text", "time", "global_step", "nothing"):
        assert whole_grid(store, metric=name).empty, name


def test_names_that_another_program_escaped_are_found_too(tmp_path, store):
    folder = write_run(tmp_path, "r")
    path = rank_file(folder, 1)
    path.parent.mkdir()
    path.write_bytes(
        b'{"event": "step", "global_step": 1, "time\\/forward": 0.5}\n'
        b'{"event": "step", "global_step": 2, "na\\u00efve": 2.5}\nrubbish\n\n'
    )

    assert whole_grid(store, metric="time/forward").high.tolist() == [[0.5]]
    assert whole_grid(store, metric="naïve").high.tolist() == [[2.5]]


def test_ranks_that_cannot_be_read_have_no_row(tmp_path, store):
    folder = write_run(tmp_path, "r", curves={STEP_TIME: float}, ranks={1: {STEP_TIME: float}})
    whole_grid(store)
    rank_file(folder, 1).unlink()
    (folder / "ranks" / "00002.jsonl").write_bytes(b"\xff\x00\n" * 5)

    assert whole_grid(store).ranks == (0, 1)
    assert whole_grid(LocalStore([tmp_path], cache_dir=None)).ranks == (0,)
