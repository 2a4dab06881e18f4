from __future__ import annotations

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnostics.synthetic_runs import changed, clean_run
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


def test_nan_in_an_unknown_metric_is_reported(tmp_path):
    rows = [{"step": step, "loss": 1.0, "reward": math.nan if step == 5 else 0.5} for step in range(10)]

    (finding,) = diagnose(write(tmp_path / "x.jsonl", *rows)).findings

    assert (finding.kind, finding.metric, finding.start_step) == ("nan", "reward", 5)


def test_the_mean_loss_at_the_end_of_a_hugging_face_log_is_no_spike(tmp_path):
    rows = [
        {"loss": record["train_loss"], "step": record["global_step"]}
        for record in clean_run(1, with_system=False, noise=0.02)
        if record["event"] == "step"
    ]
    summary = {"train_loss": 9.0, "train_runtime": 1.0, "step": rows[-1]["step"]}

    assert diagnose(write(tmp_path / "x.jsonl", *rows, summary)).findings == []


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
