"""metrics.csv is the records, byte for byte, and pandas can read it at every moment."""

import csv
import errno
import io
import math
import os
import random
import stat
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fork_server import start_python
from tests.lengths import in_make_faults, longer
from tests.runfolder.plain_data import tries
from tests.waiting import wait_until
from toolkit.telemetry.runfolder.codec import decode, encode
from toolkit.telemetry.runfolder.journal.repair import build_table
from toolkit.telemetry.runfolder.reader import read_from
from toolkit.telemetry.runfolder.table import csv_table
from toolkit.telemetry.runfolder.table.columns import FIRST_COLUMNS
from toolkit.telemetry.runfolder.table.csv_table import ALL, SHORT, Adopted, CsvTable

# The pandas after next reads every number exactly and wants no asking for it.
pytestmark = pytest.mark.filterwarnings("ignore:The 'float_precision' argument is deprecated")

posix = pytest.mark.skipif(os.name != "posix", reason="modes and links are POSIX's")


class Run:
    """A record file and its table, kept up to date as a run does."""

    def __init__(self, folder, form=ALL):
        self.records = folder / "metrics.jsonl"
        self.path = folder / "metrics.csv"
        self.seq = 0
        self.form = form
        self.table = CsvTable(self.path, form=form)

    def log(self, *given):
        """Write records, and a row for each."""
        self.table.append(self.record(*given))

    def record(self, *given):
        """Write records, and leave the table as it is."""
        lines = []
        for fields in given:
            envelope = {"event": "step", "time": 1_703_123_456.789 + self.seq / 8, "seq": self.seq}
            lines.append(encode({**envelope, **fields, "seq": self.seq}))
            self.seq += 1
        with self.records.open("ab") as file:
            file.write(b"".join(lines))
        return [decode(line) for line in lines]

    def reopen(self):
        """Go on as the next session does: with the table that is there, else with one built again."""
        self.table.close()
        self.table = CsvTable(self.path, form=self.form)
        if not self.table.adopt():
            build_table(self.records, self.path, form=self.form)
            assert self.table.adopt()
        self.table.append(self.all())

    def all(self):
        return read_from(self.records).records if self.records.exists() else []

    def rebuilt(self):
        """Return the table as `telemetry repair` builds it."""
        other = self.path.with_name("rebuilt.csv")
        build_table(self.records, other, form=self.form)
        return other.read_bytes()

    def with_rows(self):
        """Return the records that have a row."""
        return [record for record in self.all() if csv_table.columns_for(self.form).has_row(record)]


QUICK_S = csv_table._QUICK_S


@pytest.fixture
def run(tmp_path, monkeypatch):
    # A machine that pauses must not have a small table taken for a large one, which gets its new columns late.
    monkeypatch.setattr(csv_table, "_QUICK_S", math.inf)
    return Run(tmp_path)


def cells(data):
    return list(csv.reader(io.StringIO(data.decode(), newline="\n"), strict=True))


# ---------------------------------------------------------------- the same bytes, however it came about


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
_records = st.dictionaries(_names, _values, max_size=6)
_events = st.sampled_from(["step", "eval", "my event", 'a"b', "a,b", "é", "ev" * 60, "span", "start"])
_given = st.builds(
    lambda fields, event, when, loss: {**fields, "event": event, "train_loss": loss, **when},
    _records,
    _events,
    st.just({}) | _times.map(lambda when: {"time": when}),
    st.floats(),
)
_batches = st.lists(
    st.tuples(st.sampled_from(["log", "log", "log", "reopen", "torn", "lag"]), st.lists(_given, max_size=6)),
    max_size=8,
)


@settings(tries, max_examples=longer(15, 100))
@given(
    form=st.sampled_from([ALL, SHORT]),
    batches=_batches,
    page=st.sampled_from([256, 512, 4096]),
    chance=st.randoms(use_true_random=False),
)
def test_a_table_that_grew_with_its_run_is_the_one_that_is_built_again(
    tmp_path_factory, form, batches, page, chance
):
    run = Run(tmp_path_factory.mktemp("run"), form)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_table, "_PAGE", page)
        patch.setattr(csv_table, "_ROOM", page // 8)
        if chance.random() < 0.5:
            # As slow as a large table, which gets new columns only now and then.
            patch.setattr(csv_table, "_QUICK_S", -1.0)
            patch.setattr(csv_table, "_SMALL_BYTES", 0)
        for what, given_records in batches:
            if what == "torn" and run.path.exists():
                data = run.path.read_bytes()
                run.table.close()
                run.path.write_bytes(data[: chance.randint(data.index(b"\n") + 1, len(data))])
                run.reopen()
            elif what == "reopen" and run.path.exists():
                run.reopen()
            run.record(*given_records)
            if what != "lag":
                run.table.append(run.all())
        run.table.append(run.all())
        run.table.settle()
        run.table.close()

        assert run.path.exists() == bool(run.with_rows())
        if run.with_rows():
            assert run.path.read_bytes() == run.rebuilt()
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
        named = record.get("non_finite", {})
        if "train_loss" in record:
            loss = {
                "NaN": math.nan,
                "Infinity": math.inf,
                "-Infinity": -math.inf,
                None: record["train_loss"],
            }[named.get("train_loss")]
            assert frame["train_loss"][at] == loss or (
                math.isnan(frame["train_loss"][at]) and math.isnan(loss)
            )
        when = record.get("time")
        assert float(row[1] or "nan") == when or when is None


@pytest.mark.parametrize("form", [ALL, SHORT])
def test_a_table_cut_at_any_byte_is_completed_from_the_records(tmp_path, form):
    run = Run(tmp_path, form)
    rng = random.Random(3)
    run.log({"event": "start", "config": {"a": "b,\n" * 20}})
    for step in range(12):
        run.log({"global_step": step, "train_loss": rng.random(), "lr": 1e-4, "note": 'a, "b" é'})
    run.table.settle()
    run.table.close()
    whole = run.path.read_bytes()

    for length in range(0, len(whole) + 1, longer(7, 1)):
        run.path.write_bytes(whole[:length])
        run.reopen()
        run.table.settle()

        assert run.path.read_bytes() == whole


def test_a_row_that_is_there_is_not_written_twice(run):
    run.log({"train_loss": 0.5})
    before = run.path.read_bytes()
    run.table.append(run.all())
    run.reopen()

    assert run.path.read_bytes() == before
    assert run.table.last_seq == 0


def test_a_new_column_comes_by_rename_and_changes_no_old_row(run):
    run.log({"train_loss": 0.5}, {"train_loss": 0.25})
    with run.path.open("rb") as old:
        inode = os.fstat(old.fileno()).st_ino
        run.log({"train_loss": 0.125, "new": 7})

        assert old.read().count(b"\n") == 3
    assert run.path.stat().st_ino != inode
    assert [row[:3] + row[-1:] for row in cells(run.path.read_bytes())][1:] == [
        ["step", row[1], "", new]
        for row, new in zip(cells(run.path.read_bytes())[1:], ["", "", "7"], strict=True)
    ]


def test_rows_without_new_columns_are_appended(run):
    run.log({"train_loss": 0.5})
    inode = run.path.stat().st_ino
    for _ in range(500):
        run.log({"train_loss": 0.25})

    assert run.path.stat().st_ino == inode
    assert run.path.read_bytes() == run.rebuilt()


# ---------------------------------------------------------------- while a row is being written


@in_make_faults
def test_a_reader_that_sees_whole_pages_only_never_sees_half_a_row(run):
    rng = random.Random(7)
    shown = []
    run.log({"text": ""})
    for _ in range(3000):
        before, size = run.path.open("rb"), run.path.stat().st_size
        fields = {"train_loss": rng.random(), "text": "w " * rng.choice([0, 20, 120, 400, 900, 1500, 3000])}
        run.log({**fields, "event": rng.choice(["step", "eval", "my, event"])})
        with before:
            appended = os.path.samestat(os.fstat(before.fileno()), run.path.stat())
        if appended:
            shown += range(size - size % 4096 + 4096, run.path.stat().st_size, 4096)

    data = run.path.read_bytes()
    times = {row[3]: row[1] for row in cells(data)[1:]}
    assert len(shown) > 50
    torn = 0
    for end in shown:
        last = data[:end].rpartition(b"\n")[2].decode()
        if last:
            torn += 1
            (row,) = csv.reader([last], strict=True)
            seq = data[: end + data[end:].index(b"\n")].count(b"\n") - 1
            assert len(row) == 2, "more than event and time of a row can be seen before the rest"
            assert row[0] in ("step", "eval", "my, event")
            assert float(row[1]) == float(times[str(seq)])
    print(f"{len(shown)} page ends, {torn} inside of a row")
    assert run.path.read_bytes() == run.rebuilt()


def test_the_zeros_behind_a_time_change_no_number(run):
    for step in range(400):
        run.log({"global_step": step, "train_loss": step / 7})
    frame = pd.read_csv(run.path, float_precision="round_trip")

    assert max(len(row[1]) for row in cells(run.path.read_bytes())) > 40
    assert frame["time"].tolist() == [record["time"] for record in run.all()]


def test_a_row_longer_than_a_page_is_never_appended(run):
    run.log({"event": "start", "a": "x"})
    long = dict.fromkeys(("a", "b", "c", "d"), "y " * 950)
    run.log({"event": "start", **long})
    with run.path.open("rb") as before:
        run.log({"event": "start", **long})

        assert not os.path.samestat(os.fstat(before.fileno()), run.path.stat())
    assert run.path.read_bytes() == run.rebuilt()


@in_make_faults
@pytest.mark.slow
def test_pandas_reads_a_table_that_another_process_writes_at_full_speed(tmp_path):
    program = Path(__file__).parent / "programs" / "write_a_table.py"
    path = tmp_path / "metrics.csv"
    writer = start_python([program, path], stderr=subprocess.PIPE)
    reads = wholes = incomplete = newest = 0
    try:
        wait_until(path.exists, writer)
        until = time.monotonic() + 3.5
        while time.monotonic() < until or reads <= 10:
            assert writer.poll() is None, writer.stderr.read().decode()
            # The newest rows are those that could be torn, so mostly only these are read, at a moment that looks bad.
            is_whole = reads % 20 == 0
            source = path if is_whole else end_of(path)
            for _ in range(0 if is_whole else 50):
                if not source.getvalue().endswith(b"\n"):
                    break
                source = end_of(path)
            frame = pd.read_csv(source, float_precision="round_trip", low_memory=False)
            reads += 1
            wholes += is_whole
            complete = frame.dropna(subset="seq")
            incomplete += len(frame) - len(complete)

            assert len(frame) - len(complete) <= 1
            assert set(frame["event"]) == {"step"}
            assert (complete["train_loss"] == 1 / (complete["seq"] + 3)).all()
            assert frame["train_loss"].isna().sum() == len(frame) - len(complete)
            assert (frame["time"].diff().dropna() > 0).all()
            assert complete["seq"].max() >= newest
            newest = complete["seq"].max()
    finally:
        writer.kill()
        writer.wait()

    print(
        f"{reads} reads ({wholes} of all) of up to {newest:.0f} rows; {incomplete} saw a row's event and time alone"
    )
    assert reads > 10


def end_of(path):
    """Return the header and the last rows of a table, as far as they can be seen now."""
    with path.open("rb") as file:
        header = file.readline()
        file.seek(max(len(header), os.fstat(file.fileno()).st_size - 20_000))
        rows = file.read()
        behind = rows if file.tell() - len(rows) == len(header) else rows.partition(b"\n")[2]
        return io.BytesIO(header + (behind or b"step,1.5,,0,,,,0.3333333333333333\n"))


# ---------------------------------------------------------------- a large table


def test_a_large_table_gets_new_columns_only_now_and_then_and_loses_nothing(run, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(csv_table, "_QUICK_S", QUICK_S)
    monkeypatch.setattr(csv_table, "_SMALL_BYTES", 0)
    monkeypatch.setattr(csv_table.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(csv_table.time, "thread_time", lambda: clock[0])
    run.log({"train_loss": 0.5})
    write_rows = csv_table.write_rows

    def slowly(*arguments, **options):
        clock[0] += 1.0
        return write_rows(*arguments, **options)

    monkeypatch.setattr(csv_table, "write_rows", slowly)
    run.log({"a": 1})
    rewritten = run.path.read_bytes()
    run.log({"b": 2})
    run.log({"b": 3})

    assert run.path.read_bytes() == rewritten

    clock[0] += 21.0
    run.log({"b": 4})

    assert run.path.read_bytes() == run.rebuilt()

    run.log({"c": 5})
    run.table.settle()

    assert run.path.read_bytes() == run.rebuilt()


def test_rows_are_not_held_without_end(run, monkeypatch):
    monkeypatch.setattr(csv_table, "_QUICK_S", -1.0)
    monkeypatch.setattr(csv_table, "_MAX_HELD", 10)
    run.log({"train_loss": 0.5})
    monkeypatch.setattr(csv_table, "_SMALL_BYTES", 0)
    run.table._next_rewrite = math.inf
    for number in range(10):
        run.log({f"new/{number}": 1})

    assert len(pd.read_csv(run.path)) == 11


# ---------------------------------------------------------------- obstacles


LAST_ROW = b"step,1.5,0.1,3,1" + b"," * 13 + b"\n"


def test_a_table_with_quoted_cells_is_adopted(run):
    rows = b'"a, ""step"", of two",1.0,0.1,2,1' + b"," * 13 + b"\n" + LAST_ROW
    run.path.write_bytes(",".join(FIRST_COLUMNS).encode() + b"\n" + rows)

    assert run.table.adopt() == Adopted(rows=2, last_seq=3, last_session="1")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"event,time\n",
        b"a,b,c\n1,2,3\n",
        ",".join(FIRST_COLUMNS).encode(),
        ",".join(FIRST_COLUMNS).encode() + b"\nstep,1.5,0.1,not a number\n",
        ",".join(FIRST_COLUMNS).encode() + b"\nstep\n",
        ",".join(FIRST_COLUMNS).encode() + b'\n"a step' + b"," * 17 + b"\n" + LAST_ROW,
        ",".join(FIRST_COLUMNS).encode() + b'\n"a"" step' + b"," * 17 + b"\n" + LAST_ROW,
        ",".join(FIRST_COLUMNS).encode() + b'\n"a, step"' + b"," * 16 + b"\n" + LAST_ROW,
        ",".join(FIRST_COLUMNS).encode() + b'\n"a\nstep"' + b"," * 17 + b"\n" + LAST_ROW,
        ",".join(FIRST_COLUMNS).encode() + b"\nstep" + b"," * 18 + b"\n" + LAST_ROW,
        ",".join(FIRST_COLUMNS).encode() + b"\n" + b"\0" * 500 + b"\n",
        ",".join(FIRST_COLUMNS).encode() + b"\n\xff\xfe,1.5,0.1,\xb2\n",
        ",".join(FIRST_COLUMNS).encode() + "\nstep,1.5,0.1,²\n".encode(),
        b"\0" * 10_000,
        b'"' * 200_000,
    ],
    ids=lambda content: ascii(content[-20:]),
)
def test_a_table_that_is_not_ours_is_not_adopted(run, content):
    run.path.write_bytes(content)

    assert not run.table.adopt()
    assert run.path.read_bytes() == content


@posix
@pytest.mark.parametrize("kind", ["FIFO", "link", "folder"])
def test_what_is_no_regular_file_is_not_adopted(run, tmp_path, kind):
    if kind == "FIFO":
        os.mkfifo(run.path)
    elif kind == "folder":
        run.path.mkdir()
    else:
        (tmp_path / "secret").write_bytes(b",".join(name.encode() for name in FIRST_COLUMNS) + b"\n")
        run.path.symlink_to(tmp_path / "secret")

    assert not run.table.adopt()


@posix
def test_a_link_is_replaced_and_what_it_points_to_is_left_alone(run, tmp_path):
    (tmp_path / "precious").write_text("precious")
    run.path.symlink_to(tmp_path / "precious")
    run.log({"train_loss": 0.5})

    assert (tmp_path / "precious").read_text() == "precious"
    assert not run.path.is_symlink()


def test_a_foreign_record_between_ours_has_no_row_just_as_in_a_table_that_is_built_again(run):
    before, after = run.record({"train_loss": 0.5}, {"train_loss": 0.25})
    foreign = {"event": "note", "time": 1.5, "text": "of another program"}
    earlier = {**before, "train_loss": 9.0}
    run.records.write_bytes(b"".join(map(encode, (before, foreign, earlier, after))))
    run.table.append(run.all())

    assert run.path.read_bytes() == run.rebuilt()
    assert run.table.last_seq == 1


def test_a_table_that_was_modified_is_noticed(run):
    run.log({"train_loss": 0.5})

    assert run.table.is_intact()

    with run.path.open("ab") as file:
        file.write(b"x")

    assert not run.table.is_intact()

    run.path.unlink()

    assert not run.table.is_intact()


@posix
@pytest.mark.parametrize(
    ("mode", "umask", "found"), [(0o600, 0, 0o600), (0o644, 0, 0o644), (0o644, 0o77, 0o600)]
)
def test_a_table_has_the_mode_it_was_asked_for(tmp_path, mode, umask, found):
    before = os.umask(umask)
    try:
        table = CsvTable(tmp_path / "metrics.csv", mode=mode)
        table.append([{"event": "step", "seq": 0}])
        table.append([{"event": "step", "seq": 1, "new": 1}])
    finally:
        os.umask(before)
        table.close()

    assert stat.S_IMODE((tmp_path / "metrics.csv").stat().st_mode) == found


@pytest.mark.parametrize("failing", ["write", "replace", "open"])
def test_a_disk_that_fails_leaves_the_old_table_and_nothing_is_lost(run, monkeypatch, failing):
    run.log({"train_loss": 0.5}, {"train_loss": 0.25})
    before = run.path.read_bytes()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(csv_table.os, failing, full)
        for fields in ({"new": 1}, {"train_loss": 0.125}, {"newer": 2}):
            with pytest.raises(OSError, match="no space"):
                run.log(fields)

    assert run.path.read_bytes() == before
    assert sorted(path.name for path in run.path.parent.iterdir()) == ["metrics.csv", "metrics.jsonl"]

    run.log({"newest": 3})

    assert run.path.read_bytes() == run.rebuilt()


@pytest.mark.parametrize("fields", [{"train_loss": 0.125}, {"new": 1}])
def test_rows_that_are_given_again_after_a_failure_come_once(run, monkeypatch, fields):
    run.log({"train_loss": 0.5})
    batch = run.record(fields, fields)

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(csv_table.os, "write", full)
        for _ in range(3):
            with pytest.raises(OSError, match="no space"):
                run.table.append(batch)
    run.table.append(batch)

    assert run.path.read_bytes() == run.rebuilt()


def test_a_row_that_fits_only_in_part_is_taken_back(run, monkeypatch):
    run.log({"train_loss": 0.5}, {"train_loss": 0.25})
    before = run.path.read_bytes()
    write = os.write

    def nearly_full(descriptor, data):
        if len(data) > 10:
            return write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(csv_table.os, "write", nearly_full)
        with pytest.raises(OSError, match="no space"):
            run.log({"train_loss": 0.125})

    assert run.path.read_bytes() == before

    run.log({"train_loss": 0.0625})

    assert run.path.read_bytes() == run.rebuilt()
