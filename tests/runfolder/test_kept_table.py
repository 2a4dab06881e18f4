"""`repair` takes nothing away: a table with more in it than the records stays next to the one that is built."""

from __future__ import annotations

import os

import pytest

from tests.runfolder.plain_data import line
from toolkit.telemetry.runfolder.journal.repair import repair_run


@pytest.fixture
def repaired(tmp_path):
    """Return a folder of three records with their table."""
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(line(seq, train_loss=0.5) for seq in range(3)))
    repair_run(tmp_path)
    return tmp_path


def names(folder):
    return sorted(os.listdir(folder))


def test_a_table_that_lacks_rows_or_was_cut_is_replaced(repaired):
    whole = (repaired / "metrics.csv").read_text()
    for cut in (0, 20, whole.index("\n") + 1, len(whole) - 1, len(whole) - 60):
        (repaired / "metrics.csv").write_text(whole[:cut])

        assert repair_run(repaired).kept_table is None
        assert (repaired / "metrics.csv").read_text() == whole
    assert names(repaired) == ["metrics.csv", "metrics.jsonl"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + text.splitlines()[-1] + "\n",
        lambda text: text.replace("event,", "note,event,").replace("\nstep,", "\nmine,step,"),
        lambda text: f'{text}step,"{"x" * 200_000}"\n',
    ],
    ids=["row", "column", "long"],
)
def test_a_table_with_more_in_it_is_kept(repaired, change):
    built = (repaired / "metrics.csv").read_text()
    fuller = change(built)
    (repaired / "metrics.csv").write_text(fuller)
    kept = repair_run(repaired).kept_table

    assert kept == repaired / "metrics.earlier.csv"
    assert kept.read_text() == fuller
    assert (repaired / "metrics.csv").read_text() == built
    assert repair_run(repaired).kept_table is None


def test_each_one_is_kept_under_a_name_of_its_own(repaired):
    for number, name in enumerate(("metrics.earlier.csv", "metrics.earlier-2.csv", "metrics.earlier-3.csv")):
        with (repaired / "metrics.csv").open("a") as table:
            table.write(f"step,{number}\n")

        assert repair_run(repaired).kept_table == repaired / name
    assert (repaired / "metrics.earlier.csv").read_text().endswith("step,0\n")


def test_a_table_whose_records_are_gone_is_kept(repaired):
    table = (repaired / "metrics.csv").read_bytes()
    (repaired / "metrics.jsonl").write_bytes(b"")

    assert repair_run(repaired).kept_table is not None
    assert (repaired / "metrics.earlier.csv").read_bytes() == table


def test_a_table_with_a_hole_of_a_terabyte_is_kept_and_not_read(repaired):
    # A tmpfs may be smaller, and zeros are read as fast as memory allows: an hour.
    os.truncate(repaired / "metrics.csv", 2**40)

    assert repair_run(repaired).kept_table is not None
    assert (repaired / "metrics.earlier.csv").stat().st_size == 2**40
