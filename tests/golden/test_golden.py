"""A run folder of every format there ever was still opens, rebuilds to the same bytes, and goes on."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.journal.repair import repair_run
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.reader import last_record, offset_after, read_from
from toolkit.telemetry.runfolder.status import work_out_status
from toolkit.telemetry.runfolder.table.columns import WITHOUT_ROWS
from toolkit.telemetry.runfolder.table.csv_table import build_table

FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob("format_*/*/run.json"))

pytestmark = pytest.mark.filterwarnings("ignore:The 'float_precision' argument is deprecated")


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.parent.name)
def golden(request):
    return request.param


@pytest.fixture
def copied(golden, tmp_path):
    """Return a copy that may be written to."""
    folder = tmp_path / "logs" / golden.name
    shutil.copytree(golden, folder)
    folder.chmod(0o700)
    return folder


def test_there_is_a_folder_of_the_first_format():
    assert FOLDERS[0].parent.name == "format_1"


def test_every_record_is_read(golden):
    chunk = read_from(golden / "metrics.jsonl")
    records = chunk.records

    assert (chunk.bad_count, chunk.pending_bytes, chunk.replaced) == (0, 0, False)
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert {record["session"] for record in records} == {1, 2}
    assert {record["event"] for record in records} == {
        *("start", "step", "eval", "my, event", "odd", "error", "end", "checkpoint", "sample", "epoch"),
    }
    assert last_record(golden / "metrics.jsonl") == records[-1]
    assert (
        read_from(golden / "metrics.jsonl", offset_after(golden / "metrics.jsonl", 5)).records == records[6:]
    )


def test_every_line_is_strict_json(golden):
    def refuse(word):
        raise AssertionError(word)

    for line in (golden / "metrics.jsonl").read_bytes().splitlines():
        assert isinstance(json.loads(line, parse_constant=refuse), dict)


def test_the_records_say_what_was_logged(golden):
    records = read_from(golden / "metrics.jsonl").records
    of_first = [record for record in records if record["session"] == 1]
    steps = {record["global_step"]: record for record in of_first if record["event"] == "step"}
    start = records[0]

    assert (start["run_name"], start["lora_rank"], start["lora_dropout"]) == ("grey jacket, =v1", 16, 0.1)
    assert start["config"]["config"]["process"][0]["model"]["hf_token"] == "***"
    assert list(steps) == [0, 10, 17, 20, 30, 32]
    assert (steps[17]["train_loss"], steps[17]["non_finite"]) == (None, {"train_loss": "NaN"})
    assert with_non_finite(steps[30])["grad_norm"] == float("inf")
    assert (steps[10]["steps_folded"], steps[10]["train_loss_max"]) == (9, 1 / 4)
    assert steps[10]["sec_per_step"] == 0.3125
    assert [record["global_step"] for record in records if record.get("loss_jump")] == [55]
    odd = next(record for record in records if record["event"] == "odd")
    assert (odd["unencodable"], odd["x_seq"]) == ({"thing": "object"}, 5)


def test_the_manifest_is_read(golden):
    manifest = read_manifest(golden)

    assert manifest.format == int(golden.parent.name.removeprefix("format_"))
    assert (manifest.run_id, manifest.display_name) == ("0123456789abcdef", "grey jacket, =v1")
    assert (manifest.project, manifest.tags) == ("jackets", ("flux", "naïve"))
    assert [session.status for session in manifest.sessions] == ["failed", "finished"]
    assert manifest.summary["train_loss"] == 0.31
    assert work_out_status(manifest, 2e9).name == "finished"


def test_the_table_is_built_again_with_the_same_cells(golden, tmp_path):
    built = build_table(golden / "metrics.jsonl", tmp_path / "metrics.csv")
    before = pd.read_csv(golden / "metrics.csv", float_precision="round_trip")
    after = pd.read_csv(tmp_path / "metrics.csv", float_precision="round_trip")

    assert built.bad_lines == 0
    assert built.rows == len(read_from(golden / "metrics.jsonl").records)
    pd.testing.assert_frame_equal(after[before.columns], before)


def test_the_table_says_what_the_records_say(golden):
    frame = pd.read_csv(golden / "metrics.csv", float_precision="round_trip")
    records = [with_non_finite(record) for record in read_from(golden / "metrics.jsonl").records]

    assert len(frame) == len(records)
    for name in (
        "seq",
        "session",
        "time",
        "elapsed",
        "global_step",
        "train_loss",
        "val_loss",
        "lr",
        "grad_norm",
    ):
        logged = pd.Series([record.get(name) for record in records], dtype=float)
        assert frame[name].astype(float).equals(logged), name
    assert frame["event"].tolist() == [record["event"] for record in records]
    assert frame["formula"].dropna().tolist() == ["'=1+1"]


def test_an_old_run_is_resumed_and_nothing_of_it_is_rewritten(copied):
    before = (copied / "metrics.jsonl").read_bytes()
    count = len(before.splitlines())
    with TelemetryLogger("grey jacket, =v1", log_dir=copied.parent, resume=True, system=False) as log:
        log.log_step(61, train_loss=0.125, brand_new=1.5)
    after = read_from(copied / "metrics.jsonl").records

    assert log.run_folder == copied
    assert (copied / "metrics.jsonl").read_bytes().startswith(before)
    assert [record["seq"] for record in after] == list(range(len(after)))
    assert {record["session"] for record in after[count:]} == {3}
    # The machine may be described after the first records, in a record of its own.
    with_rows = [record for record in after if record["event"] not in WITHOUT_ROWS]
    assert len(pd.read_csv(copied / "metrics.csv")) == len(with_rows)


def test_an_old_run_can_be_repaired(copied):
    before = (copied / "metrics.csv").read_bytes()
    (copied / "metrics.csv").write_bytes(before[: len(before) // 2])
    repair = repair_run(copied)

    assert (repair.recovered, repair.bad_lines, repair.in_use) == (0, 0, False)
    assert len(pd.read_csv(copied / "metrics.csv")) == before.count(b"\n") - 1
