"""Batches go into their file and come back, also from a file that was cut or spoilt."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.telemetry.runfolder.evidence.batches import (
    BatchRow,
    batches_file,
    encode_rows,
    fingerprint_of_ids,
    read_batches,
)

_ids = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    st.lists(st.integers(0, 2**64 - 1), max_size=20),
    st.lists(st.text(max_size=20).filter(lambda text: text.isprintable()), min_size=1, max_size=20),
)
_rows = st.builds(
    lambda ids, with_losses: BatchRow(len(ids), ids, losses=[0.5] * len(ids) if with_losses else None),
    _ids,
    st.booleans(),
)


def _write(folder: Path, *chunks: bytes) -> None:
    batches_file(folder).write_bytes(b"".join(chunks))


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(-1, 2**40), _rows), max_size=6), session=st.integers(1, 300))
def test_batches_survive_the_trip_through_the_file(tmp_path_factory, rows, session):
    folder = tmp_path_factory.mktemp("run")
    _write(folder, encode_rows(session, rows))

    found = read_batches(folder)

    assert found.problem is None
    assert list(found.step) == [step for step, _ in rows]
    assert list(found.session) == [session] * len(rows)
    for at, (_, row) in enumerate(rows):
        assert list(found.ids(at)) == list(row.ids)
        assert found.fingerprint[at] == fingerprint_of_ids(row.ids)
        assert (found.losses(at) is None) == (row.losses is None)


def test_a_torn_line_costs_only_its_own_batch(tmp_path):
    first, second = (encode_rows(session, [(5, BatchRow(2, [session, 9]))]) for session in (1, 2))
    _write(tmp_path, first, first[:-3], b"\n", second, second[:4])

    found = read_batches(tmp_path)

    assert list(found.session) == [1, 2]
    assert "cannot be read" in (found.problem or "")
    assert found.of_step(5) == [1]
    assert found.of_step(5, session=1) == [0]


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200), cut=st.integers(0, 60))
def test_no_file_makes_the_reader_fail(tmp_path_factory, data, cut):
    folder = tmp_path_factory.mktemp("run")
    whole = encode_rows(1, [(1, BatchRow(2, ["a", "bc"], losses=[1.0, 2.0])), (2, BatchRow(1, [7]))])
    _write(folder, whole[:cut], data, b"\n", whole)

    found = read_batches(folder)

    assert len(found.fingerprint) == len(found)
    assert [found.losses(at) for at in range(len(found))][-2:] == [[1.0, 2.0], None]


def test_a_missing_file_is_no_problem_and_a_link_is_one(tmp_path):
    assert read_batches(tmp_path).problem is None
    assert read_batches(tmp_path / "not there").problem is None

    (tmp_path / "elsewhere").write_bytes(b"")
    batches_file(tmp_path).symlink_to(tmp_path / "elsewhere")

    assert read_batches(tmp_path).problem


def test_a_fingerprint_is_the_same_in_every_process_and_on_every_machine():
    assert fingerprint_of_ids([1, 873]) == 16831192313670626292
    assert fingerprint_of_ids(["a", "ü"]) == 15943485595574103928
    assert fingerprint_of_ids([1, 873]) != fingerprint_of_ids([873, 1])


def test_the_samples_of_a_step_are_named_those_with_the_highest_loss_first(tmp_path):
    rows = [(7, BatchRow(3, [4, 5, 6], losses=[0.5, float("nan"), 2.0])), (7, BatchRow(1, ["a.png"]))]
    _write(tmp_path, encode_rows(1, rows), encode_rows(2, [(7, BatchRow(2, fingerprint=9))]))

    found = read_batches(tmp_path)

    named = "samples 5 (loss nan), 6 (loss 2), 4 (loss 0.5), a.png"
    assert found.samples_text(7, 1) == f"Batch of step 7: {named}."
    assert found.samples_text(7, 1, most=1) == "Batch of step 7: samples 5 (loss nan), and 3 more."
    assert found.samples_text(7, 2) == found.samples_text(8, 1) == ""
