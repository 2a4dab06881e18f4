"""metrics.csv is the records, and pandas can read it at any time of a run."""

import csv
import errno
import io
import math
import os
import random

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from tests.records import without_padding
from tests.runfolder.plain_data import tries
from toolkit.telemetry.runfolder.codec import decode, encode, with_non_finite
from toolkit.telemetry.runfolder.reader import read_from
from toolkit.telemetry.runfolder.table import csv_table
from toolkit.telemetry.runfolder.table.columns import ALL, SHORT, Columns
from toolkit.telemetry.runfolder.table.csv_table import CsvTable, build_table

# The pandas after next reads every number exactly and wants no asking for it.
pytestmark = pytest.mark.filterwarnings("ignore:The 'float_precision' argument is deprecated")

posix = pytest.mark.skipif(os.name != "posix", reason="modes and links are POSIX's")
PAGE = 4096


class Run:
    """A record file and its table, kept up to date as a run does."""

    def __init__(self, folder, form=ALL, mode=0o600):
        self.folder, self.form, self.mode = folder, form, mode
        self.records, self.path = folder / "metrics.jsonl", folder / "metrics.csv"
        self.seq = 0
        self.resume()

    def resume(self):
        """Continue as the next session does."""
        self.mirror = CsvTable(self.records, self.path, mode=self.mode, form=self.form)
        self.mirror.start_at()

    def log(self, *given_fields):
        """Write records, and then their rows."""
        self.mirror.write(self.record(*given_fields))

    def record(self, *given_fields):
        """Write records, and leave the table as it is."""
        lines = []
        for fields in given_fields:
            envelope = {"event": "step", "time": 1_703_123_456.789 + self.seq / 8, "seq": self.seq}
            lines.append(encode({**envelope, **fields, "seq": self.seq}))
            self.seq += 1
        with self.records.open("ab") as file:
            file.write(b"".join(lines))
        return [decode(line) for line in lines]

    def with_rows(self):
        """Return the records that have a row."""
        return [record for record in read_from(self.records).records if Columns(self.form).has_row(record)]

    def rebuilt(self):
        """Return the table as `telemetry repair` builds it."""
        build_table(self.records, self.folder / "rebuilt.csv", form=self.form)
        return without_padding(self.folder / "rebuilt.csv")


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def cells(data):
    return list(csv.reader(io.StringIO(data.decode(), newline="\n"), strict=True))


# ---------------------------------------------------------------- the same cells, however it came about


_names = st.sampled_from(["lr", "loss/a", "a,b", 'q"q', "new\nline", "=x", "é", "n" * 60]) | st.text(
    st.characters(codec="utf-8"), max_size=6
)
_values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=60)
    | st.sampled_from(["x" * 300, "y" * 700, "z,\n" * 400, [1, None, "a"], {"k": {"l": 1.5}}])
)
_times = st.none() | st.floats(0, 4e9) | st.integers(0, 2**40) | st.just(1e300)
_events = st.sampled_from(["step", "eval", "my event", 'a"b', "a,b", "é", "ev" * 60, "span", "start"])
_given = st.builds(
    lambda fields, event, when, loss: {**fields, "event": event, "train_loss": loss, **when},
    st.dictionaries(_names, _values, max_size=6),
    _events,
    st.just({}) | _times.map(lambda when: {"time": when}),
    st.floats(),
)
_batches = st.lists(
    st.tuples(st.sampled_from(["log", "log", "log", "resume", "cut", "edit"]), st.lists(_given, max_size=6)),
    max_size=8,
)


@settings(tries, max_examples=longer(15, 100))
@given(
    form=st.sampled_from([ALL, SHORT]),
    batches=_batches,
    page=st.sampled_from([256, 512, PAGE]),
    chance=st.randoms(use_true_random=False),
)
def test_a_table_that_grew_with_its_run_is_the_one_that_is_built_again(
    tmp_path_factory, form, batches, page, chance
):
    run = Run(tmp_path_factory.mktemp("run"), form)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_table, "_PAGE", page)
        for what, given_records in batches:
            if what in ("cut", "edit") and run.path.exists():
                data = run.path.read_bytes()
                cut = data[: chance.randint(0, len(data))]
                run.path.write_bytes(cut if what == "cut" else cut + b"7")
            if what in ("cut", "resume"):
                run.resume()
            run.log(*given_records)
        run.log({"event": "end"})
        run.mirror.close()

        assert without_padding(run.path) == run.rebuilt()
        check_cells(run)


def check_cells(run):
    """Assert that the table says what the records say, to the last digit."""
    header, *rows = cells(run.path.read_bytes())
    records = run.with_rows()
    frame = pd.read_csv(run.path, float_precision="round_trip")

    assert len(rows) == len(records) == len(frame)
    assert len(set(header)) == len(header)
    for at, (row, record) in enumerate(zip(rows, records, strict=True)):
        assert len(row) == len(header)
        assert int(row[3]) == frame["seq"][at] == record["seq"]
        whole = with_non_finite(record)
        for name in ("time", "train_loss"):
            if isinstance(whole.get(name), (int, float)):
                assert frame[name][at] == whole[name] or math.isnan(frame[name][at]) == math.isnan(
                    whole[name]
                )


@pytest.mark.parametrize("form", [ALL, SHORT])
def test_a_table_cut_at_any_byte_is_completed_from_the_records(tmp_path, form):
    run = Run(tmp_path, form)
    rng = random.Random(3)
    run.log({"event": "start", "config": {"a": "b,\n" * 20}})
    for step in range(12):
        run.log({"global_step": step, "train_loss": rng.random(), "lr": 1e-4, "note": 'a, "b" é'})
    whole = run.path.read_bytes()

    for length in range(0, len(whole) + 1, longer(23, 1)):
        run.path.write_bytes(whole[:length])
        run.resume()

        assert without_padding(run.path) == run.rebuilt()


def test_a_new_column_comes_by_rename_and_other_rows_are_appended(run):
    run.log({"train_loss": 0.5}, {"train_loss": 0.25})
    with run.path.open("rb") as old:
        for _ in range(500):
            run.log({"train_loss": 0.75})
        assert os.path.samestat(os.fstat(old.fileno()), run.path.stat())
        run.log({"event": "note", "new": 7})

        assert old.read().count(b"\n") == 1 + 502
    assert [row[-1] for row in cells(run.path.read_bytes())] == ["new", *[""] * 502, "7"]
    assert without_padding(run.path) == run.rebuilt()


# ---------------------------------------------------------------- while a row is being written


@pytest.mark.parametrize("form", [ALL, SHORT])
@pytest.mark.parametrize("width", [3, 40, 1900])
def test_a_reader_that_sees_whole_pages_only_never_sees_a_part_of_a_cell(tmp_path, form, width):
    run, rng, ends = Run(tmp_path, form), random.Random(7), []
    odd = [1e-12, 12345678901234567890, True, math.nan, -1e300, 7, -0.25]
    run.log({f"m{at}": 0.5 for at in range(width)} | {"text": "t"})
    for _ in range(3000 // width + 20):
        size, before = run.path.stat().st_size, run.path.open("rb")
        fields = {f"m{at}": rng.choice([rng.random(), rng.random(), rng.choice(odd)]) for at in range(width)}
        text = "w, é " * rng.choice([0, 1, 20, 39])
        run.log({"train_loss": rng.random(), **fields, "event": rng.choice(["step", "note"]), "text": text})
        with before:
            if os.path.samestat(os.fstat(before.fileno()), run.path.stat()):
                ends += range(size - size % PAGE + PAGE, run.path.stat().st_size, PAGE)
    data = run.path.read_bytes()
    rows = cells(data)

    assert len(ends) > 10
    for end in ends:
        part = data[:end].rpartition(b"\n")[2]
        if part:
            (seen,) = csv.reader([part.decode()], strict=True)
            whole = rows[data[:end].count(b"\n")]
            # The last cell that is seen may be an empty one whose text comes with the next page.
            for shown, meant in zip(seen, whole, strict=False):
                assert shown in (meant, "") or float(shown) == float(meant)
            assert [*map(bool, seen[:2])] == [True, True]
    assert without_padding(run.path) == run.rebuilt()
    check_cells(run)


# ---------------------------------------------------------------- a large table, and a disk that fails


def test_a_foreign_record_between_ours_has_no_row_just_as_in_a_table_that_is_built_again(run):
    before, after = run.record({"train_loss": 0.5}, {"train_loss": 0.25})
    foreign = {"event": "note", "time": 1.5, "text": "of another program"}
    run.records.write_bytes(encode(before))
    run.mirror.write([before])
    run.records.write_bytes(b"".join(map(encode, (before, foreign, {**before, "train_loss": 9.0}, after))))
    run.mirror.write([foreign, {**before, "train_loss": 9.0}, after])

    assert without_padding(run.path) == run.rebuilt()
    assert [row[3] for row in cells(run.path.read_bytes())[1:]] == ["0", "1"]


@pytest.mark.parametrize("failing", ["write", "replace", "open"])
@pytest.mark.parametrize("fields", [{"train_loss": 0.125}, {"new": 1}])
def test_a_disk_that_fails_leaves_the_old_table_and_rows_given_again_come_once(
    run, monkeypatch, failing, fields
):
    run.log({"train_loss": 0.5}, {"train_loss": 0.25})
    before, batch = run.path.read_bytes(), run.record(fields, fields)
    write = os.write

    def full(*given, **_):
        if failing == "write" and len(given[1]) > 10:
            return write(given[0], given[1][:10])
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, full)
        for _ in range(3):
            if failing != "replace" or "new" in fields:
                with pytest.raises(OSError, match="no space"):
                    run.mirror.write(batch)

    assert run.path.read_bytes() == before
    assert sorted(path.name for path in run.folder.iterdir()) == ["metrics.csv", "metrics.jsonl"]
    run.mirror.write(batch)
    assert without_padding(run.path) == run.rebuilt()
