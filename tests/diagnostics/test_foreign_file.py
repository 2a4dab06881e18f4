from __future__ import annotations

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnostics.synthetic_runs import changed, clean_run
from tests.lengths import in_make_faults
from tests.runfolder.plain_data import without_haste
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.diagnostics.foreign_file import ForeignFile, NoRecordsError
from toolkit.telemetry.diagnostics.history import diagnose
from toolkit.telemetry.runfolder.reader import blocks_of
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES


def records_of(path):
    return [record for chunk in ForeignFile(path).chunks() for record in chunk]


def steps_of(path):
    return [record.get("global_step") for record in records_of(path)]


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def losses(count=60, bad=(30, 31)):
    return [math.nan if step in bad else 1.0 / step for step in range(1, count + 1)]


# ------------------------------------------------------------ JSONL


def test_bare_nan_tokens_are_understood(tmp_path):
    rows = [
        {"event": "step", "global_step": step, "train_loss": loss}
        for step, loss in enumerate(losses(), start=1)
    ]
    path = write(tmp_path / "curve.jsonl", *rows)
    assert '"train_loss": NaN}' in path.read_text()

    found = diagnose(path)

    assert (found.name, found.records, found.bad_lines) == ("curve", 60, 0)
    (finding,) = found.findings
    assert (finding.kind, finding.start_step, finding.end_step, finding.resolved_step) == ("nan", 30, 31, 34)


@pytest.mark.parametrize(
    ("token", "value"),
    [
        ("NaN", math.nan),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ('"NaN"', math.nan),
        ('"-Infinity"', -math.inf),
        ("1e999", math.inf),
        ("1" + 400 * "0", math.inf),
    ],
)
def test_every_way_to_write_what_json_has_no_number_for_is_understood(tmp_path, token, value):
    path = write(tmp_path / "x.jsonl", f'{{"step": 1, "loss": {token}}}')

    (record,) = records_of(path)

    assert record["loss"] == value or (math.isnan(value) and math.isnan(record["loss"]))
    assert list(record["non_finite"]) == ["loss"]


def test_nan_in_an_unknown_metric_is_reported(tmp_path):
    rows = [{"step": step, "loss": 1.0, "reward": math.nan if step == 5 else 0.5} for step in range(10)]

    (finding,) = diagnose(write(tmp_path / "x.jsonl", *rows)).findings

    assert (finding.kind, finding.metric, finding.start_step) == ("nan", "reward", 5)


@pytest.mark.parametrize(
    "name",
    [
        "step",
        "Step",
        "iteration",
        "iter",
        "_step",
        "current_steps",
        "trainer/global_step",
        "train/global_step",
    ],
)
def test_the_step_is_found_whatever_it_is_called(tmp_path, name):
    path = write(tmp_path / "x.jsonl", *({name: 10 * n, "loss": 1.0, "epoch": 0} for n in range(1, 4)))

    assert steps_of(path) == [10, 20, 30]


def test_the_trainers_step_counts_more_than_the_count_of_log_calls(tmp_path):
    path = write(
        tmp_path / "x.jsonl", {"_step": 1, "trainer/global_step": 50}, {"_step": 2, "trainer/global_step": 60}
    )

    assert steps_of(path) == [50, 60]


def test_a_record_without_step_among_others_that_have_one_belongs_to_the_last(tmp_path):
    path = write(tmp_path / "x.jsonl", {"step": 10, "loss": 1.0}, {"lr": 1.0}, {"step": 20, "loss": 1.0})

    assert sorted(steps_of(path), key=str) == [10, 20, None]


def test_without_steps_whole_epochs_count(tmp_path):
    path = write(
        tmp_path / "x.jsonl", *({"epoch": n, "train_loss": 1.0, "val_loss": 1.0} for n in range(1, 5))
    )
    found = diagnose(path)

    assert [*dict.fromkeys(steps_of(path))] == [1, 2, 3, 4]
    assert found.notes == ("it has no step numbers: its epochs count as steps",)


@pytest.mark.parametrize("epoch", [lambda n: n / 100, lambda n: n // 50, lambda n: None])
def test_without_steps_and_usable_epochs_rows_are_counted(tmp_path, epoch):
    path = write(tmp_path / "x.jsonl", *({"epoch": epoch(n), "loss": 1.0} for n in range(120)))
    found = diagnose(path)

    assert steps_of(path) == list(range(120))
    assert found.notes == ("it has no step numbers: rows count as steps, from 0",)


def test_events_are_inferred_from_the_fields_of_a_record(tmp_path):
    path = write(
        tmp_path / "trainer_log.jsonl",
        {"step": 1, "loss": 1.0},
        {"step": 2, "eval_loss": 1.0},
        {"step": 3, "train_loss": 9.0, "train_runtime": 60.0},
        {"step": 4, "train_loss": 9.0, "event": "mine"},
        {"step": 5, "train_loss": 9.0, "event": "system"},
    )

    assert [record["event"] for record in records_of(path)] == ["step", "eval", "epoch", "step", "system"]


def test_the_mean_loss_at_the_end_of_a_hugging_face_log_is_no_spike(tmp_path):
    rows = [
        {"loss": record["train_loss"], "step": record["global_step"]}
        for record in clean_run(1, with_system=False, noise=0.02)
        if record["event"] == "step"
    ]
    summary = {"train_loss": 9.0, "train_runtime": 1.0, "step": rows[-1]["step"]}

    assert diagnose(write(tmp_path / "x.jsonl", *rows, summary)).findings == []


def test_a_last_line_without_newline_counts_if_it_is_whole(tmp_path):
    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    whole.write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "loss": NaN}')
    torn.write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "lo')

    assert steps_of(whole) == [1, 2]
    assert steps_of(torn) == [1]
    assert diagnose(torn).bad_lines == 0


def test_lines_that_are_no_object_are_counted_and_empty_ones_are_not(tmp_path):
    path = write(
        tmp_path / "x.jsonl",
        {"step": 1, "loss": 1.0},
        *("", "  \r", "[1]", "17", "NaN", "{", "{" * 5000, "[" * 100_000),
        '{"x": "' + "x" * MAX_LINE_BYTES + '"}',
        {"step": 2, "loss": 1.0},
    )
    found = diagnose(path)

    assert (found.records, found.bad_lines) == (2, 7)


def test_a_mark_at_the_start_of_the_file_and_windows_line_ends_do_no_harm(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"step": 1, "loss": 1.0}\r\n{"step": 2, "loss": NaN}\r\n')

    assert steps_of(path) == [1, 2]
    assert diagnose(path).bad_lines == 0


def test_a_record_file_of_ours_reads_the_same_bare(tmp_path):
    with TelemetryLogger("r", log_dir=tmp_path, log_every=1, system=False) as log:
        for step, loss in enumerate(losses(), start=1):
            log.log_step(step, train_loss=loss)
    folder = diagnose(tmp_path / "r")

    for name in ("metrics.jsonl", "metrics.csv"):
        bare = diagnose(tmp_path / "r" / name)
        assert bare.findings == folder.findings
        assert bare.bad_lines == 0


# ------------------------------------------------------------ CSV


def test_a_csv_file_is_read_by_its_header(tmp_path):
    rows = [f"{step},{loss},,x" for step, loss in enumerate(losses(), start=1)]
    found = diagnose(write(tmp_path / "curve.csv", "step, train_loss ,val_loss,note", *rows))

    assert (found.name, found.records, found.bad_lines) == ("curve", 60, 0)
    (finding,) = found.findings
    assert (finding.kind, finding.metric, finding.start_step, finding.end_step) == (
        "nan",
        "train_loss",
        30,
        31,
    )


def test_a_csv_file_gives_the_findings_that_its_rows_give_as_jsonl(tmp_path):
    records = changed(
        clean_run(1), "train_loss", lambda step, loss: loss * (40 if 3000 <= step < 3040 else 1)
    )
    rows = [
        {name: record[name] for name in ("global_step", "train_loss", "grad_norm", "lr")}
        for record in records
        if record["event"] == "step"
    ]
    as_csv = write(tmp_path / "a.csv", ",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows))
    as_jsonl = write(tmp_path / "a.jsonl", *rows)

    assert [finding.kind for finding in diagnose(as_csv).findings] == ["spike"]
    assert diagnose(as_csv).findings == diagnose(as_jsonl).findings


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("nan", math.nan),
        ("NaN", math.nan),
        ("inf", math.inf),
        ("-inf", -math.inf),
        (" 0.5 ", 0.5),
        ("1e-3", 1e-3),
    ],
)
def test_cells_that_are_numbers(tmp_path, cell, value):
    (record,) = records_of(write(tmp_path / "x.csv", "step,loss", f"7,{cell}"))

    assert record["global_step"] == 7
    assert record["loss"] == value or (math.isnan(value) and math.isnan(record["loss"]))
    assert ("non_finite" in record) is not math.isfinite(value)


def test_an_empty_cell_is_no_value(tmp_path):
    (record,) = records_of(write(tmp_path / "x.csv", "step,loss,lr", "7,,0.1"))

    assert "loss" not in record


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_delimiter_is_seen_from_the_header(tmp_path, delimiter):
    path = write(tmp_path / "x.tsv", delimiter.join(["step", "loss"]), delimiter.join(["3", "0.5"]))

    (record,) = records_of(path)

    assert (record["global_step"], record["loss"]) == (3, 0.5)


def test_unreadable_rows_are_counted(tmp_path):
    path = write(
        tmp_path / "x.csv",
        "step,loss",
        *("1,0.5", "step,loss", "# a comment", "", "2,0.5,0.5", "3,0.5", "4,0\x00.5", "5,0.5"),
    )
    found = diagnose(path)

    # A row whose loss is no number is no bad row.
    assert (found.records, found.bad_lines) == (3, 3)


@in_make_faults
def test_a_quote_that_is_never_closed_does_not_fill_the_memory(tmp_path):
    path = write(tmp_path / "x.csv", "step,loss", "1,0.5", '2,"0.5', *(f"{n},0.5" for n in range(3, 50_000)))
    found = diagnose(path)

    assert found.bad_lines >= 1
    assert found.records > 20_000


def test_a_last_row_without_newline_counts_if_no_cell_is_missing(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("step,loss,lr\n1,0.5,0.1\n2,0.5,0.1")
    assert steps_of(path) == [1], "its last number may get more digits"
    os.utime(path, (1e9, 1e9))
    assert steps_of(path) == [1, 2]

    path.write_text("step,loss,lr\n1,0.5,0.1\n2,0.")
    os.utime(path, (1e9, 1e9))
    assert steps_of(path) == [1]


def test_a_csv_file_without_header_is_refused(tmp_path):
    with pytest.raises(NoRecordsError, match="has no header row"):
        diagnose(write(tmp_path / "x.csv", "1,0.5", "2,0.5"))


# ------------------------------------------------------------ neither


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x"])
@pytest.mark.parametrize("content", ["", "\n", "\n\n  \n"])
def test_an_empty_file_is_reported_as_empty(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)

    with pytest.raises(NoRecordsError, match="has no records: it is empty"):
        diagnose(path)


def test_a_file_without_records_is_reported(tmp_path):
    with pytest.raises(NoRecordsError, match="has no records: all of its 2 lines are unreadable"):
        diagnose(write(tmp_path / "notes.md", "# Notes", "one", "two"))


def test_what_a_file_holds_counts_more_than_its_ending(tmp_path):
    assert steps_of(write(tmp_path / "x.log", {"step": 5, "loss": 1.0})) == [5]
    assert steps_of(write(tmp_path / "y.txt", "step,loss", "5,1.0")) == [5]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.jsonl")

    with pytest.raises(OSError, match="is a FIFO, not a regular file"):
        diagnose(tmp_path / "x.jsonl")


@without_haste
@given(content=st.binary(max_size=400), name=st.sampled_from(["x.jsonl", "x.csv"]), head=st.booleans())
def test_no_content_makes_it_fail(tmp_path_factory, content, name, head):
    path = tmp_path_factory.mktemp("any") / name
    start = b'{"step": 1, "loss": 1}\n' if name == "x.jsonl" else b"step,loss\n1,1.0\n"
    path.write_bytes(start + content if head else content)

    try:
        found = diagnose(path)
    except NoRecordsError:
        assert not head
    else:
        assert found.records >= 1


# ------------------------------------------------------------ blocks


def test_what_is_appended_while_one_reads_is_left_out(tmp_path):
    path = write(tmp_path / "x.jsonl", *({"step": n} for n in range(100_000)))
    size = path.stat().st_size
    read = b""

    for block in blocks_of(path):
        read += block.data
        with path.open("a") as file:
            file.write('{"step": 0}\n' * 10)
        assert len(read) < size + 2 * MAX_LINE_BYTES

    assert len(read) >= size


def test_a_file_that_is_replaced_while_one_reads_is_an_error(tmp_path):
    path = write(tmp_path / "x.jsonl", *({"step": n, "filled": "x" * 100} for n in range(20_000)))

    other = write(tmp_path / "y.jsonl", *({"other": n, "filled": "y" * 100} for n in range(20_000)))
    blocks = blocks_of(path)
    next(blocks)
    os.replace(other, path)

    with pytest.raises(OSError, match="was replaced while it was being read"):
        next(blocks)


def test_an_over_long_line_at_the_end_is_not_held_in_memory(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 1}\n' + b"x" * (3 * MAX_LINE_BYTES))

    assert steps_of(path) == [1]
