"""Ranks that run other code or packages, or get other data than the others."""

from __future__ import annotations

import json

import pytest

from toolkit.telemetry.diagnostics.finding import ranks_in
from toolkit.telemetry.diagnostics.rank_differences import RankDifferences
from toolkit.telemetry.runfolder.evidence.batches import BatchRow, batches_file, encode_rows
from toolkit.telemetry.runfolder.layout import rank_file

USUAL = {
    "code_files": {"train.py": "aa", "model.py": "bb"},
    "packages": {"torch": "2.9.0", "numpy": "2.4"},
    "data": [{"path": "data", "hash": "cc"}],
}


def start(folder, ranks, world=None, steps_before=0, **other):
    """Write what ranks begin with; their environment comes once it is known, after some steps."""
    for rank in ranks:
        path = rank_file(folder, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        fields = {"host": "here", "pid": 7, **USUAL, **other}
        records = [
            {"event": "start", "time": 1.0, "session": 1, "world_size": world or len(ranks)},
            *({"event": "step", "time": 1.0, "session": 1, "train_loss": 0.5} for _ in range(steps_before)),
            {"event": "environment", "time": 1.0, "session": 1, **fields},
        ]
        lines = (json.dumps({"seq": seq, **record}) for seq, record in enumerate(records))
        path.write_text("".join(f"{line}\n" for line in lines))


def batches(folder, ids_of, ranks):
    for rank in ranks:
        rows = [(step, BatchRow(len(ids_of(rank, step)), ids=ids_of(rank, step))) for step in range(1, 41)]
        batches_file(folder, rank).write_bytes(encode_rows(1, rows))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            {"code_files": {"train.py": "aa", "model.py": "zz"}},
            "The code of rank 3 is not that of the others: model.py.",
        ),
        (
            {"packages": {"torch": "2.8.0", "numpy": "2.4"}},
            "The packages of rank 3 are not those of the others: torch.",
        ),
        ({"data": [{"path": "data", "hash": "dd"}]}, "The data of rank 3 is not that of the others: data."),
    ],
)
@pytest.mark.parametrize("steps_before", [0, 3_000])
def test_a_rank_that_is_made_of_something_else_is_named_once(tmp_path, other, said, steps_before):
    start(tmp_path, range(4), steps_before=steps_before)
    start(tmp_path, [3], world=4, steps_before=steps_before, **other)
    differences = RankDifferences(tmp_path, session=1)
    (finding,) = differences.look([1, 2, 3], 5)

    assert finding.message == said
    assert ranks_in(finding.evidence) == [3]
    assert differences.look([1, 2, 3], 10) == []


def test_ranks_that_are_alike_or_import_more_are_not_reported(tmp_path):
    start(tmp_path, range(4))
    more = {**USUAL["code_files"], "charts.py": "ee"}
    start(tmp_path, [0], world=4, code_files=more, data=[{"path": "data/0", "hash": "ff"}])
    batches(tmp_path, lambda rank, step: [8 * step + 2 * rank, 8 * step + 2 * rank + 1], range(4))
    differences = RankDifferences(tmp_path, session=1)

    assert [differences.look([1, 2, 3], step) for step in (5, 50, 100, 300)] == [[]] * 4


@pytest.mark.parametrize(
    ("source", "named"),
    [([0, 1, 2, 2], [2, 3]), ([0, 0, 2, 2], None), ([0, 0, 0, 0], None)],
    ids=["one gets those of another", "a model split over two", "all the same"],
)
def test_batches_that_two_ranks_share_are_reported_where_the_others_have_their_own(tmp_path, source, named):
    start(tmp_path, range(4))
    batches(tmp_path, lambda rank, step: [100 * step + source[rank]], range(4))
    found = RankDifferences(tmp_path, session=1).look([1, 2, 3], 50)

    assert [ranks_in(finding.evidence) for finding in found] == ([named] if named else [])


def test_a_rank_that_has_not_started_is_waited_for(tmp_path):
    start(tmp_path, range(3), world=4)
    differences = RankDifferences(tmp_path, session=1)
    assert differences.look([1, 2], 5) == []
    start(tmp_path, [3], code_files={"model.py": "zz"})

    assert [ranks_in(finding.evidence) for finding in differences.look([1, 2, 3], 8)] == [[3]]
