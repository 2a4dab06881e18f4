from __future__ import annotations

import math
import random

import pytest

from tests.diagnostics.synthetic_runs import changed, clean_run
from tests.made_runs import append, write_run
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.diagnostics.examiner import examine
from toolkit.telemetry.diagnostics.history import diagnose
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES


@pytest.fixture
def logged(tmp_path):
    """The folder of a run with a NaN, written by the real logger."""
    with TelemetryLogger("greyjacket", log_dir=tmp_path / "logs", log_every=1, system=False) as log:
        for step in range(1, 61):
            log.log_step(step, train_loss=math.nan if step in (30, 31) else 1.0 / step, lr=1e-4)
    return tmp_path / "logs" / "greyjacket"


# ------------------------------------------------------------ run folders


def test_a_run_longer_than_a_block_is_read_whole(tmp_path):
    records = clean_run(1, records=6000)
    records = changed(records, "train_loss", lambda step, loss: math.nan if 1000 <= step < 1100 else loss)
    folder = append(tmp_path / "run", records)
    assert (folder / "metrics.jsonl").stat().st_size > 2 * MAX_LINE_BYTES
    progress = []

    found = diagnose(folder, on_records=progress.append)

    assert found.findings == examine(records)
    assert progress == sorted(set(progress))
    assert progress[-1] == found.records == len(records)


def test_a_manifest_that_cannot_be_used_is_no_reason_to_say_nothing(logged):
    (logged / "run.json").write_text("{")

    found = diagnose(logged)

    assert [finding.kind for finding in found.findings] == ["nan"]
    assert "is not JSON" in found.notes[0]


# ------------------------------------------------------------ ranks


def slow_rank(folder, *, slow_from, skew_s=0.0, ranks=3):
    """A run in whose folder rank 2 becomes half as fast."""
    dice = random.Random(1)
    records = clean_run(1, with_rate=False, with_system=False)
    append(folder, records)
    (folder / "ranks").mkdir()
    for rank in range(1, ranks + 1):
        lines = []
        for record in records:
            took = 0.4 * dice.lognormvariate(0.0, 0.05)
            if rank == 2 and record["global_step"] >= slow_from:
                took *= 2.0
            lines.append(
                encode({**record, "rank": rank, "time": record["time"] + skew_s, "sec_per_step": took})
            )
        (folder / "ranks" / f"{rank:05d}.jsonl").write_bytes(b"".join(lines))
    return folder


@pytest.mark.parametrize("skew_s", [0.0, -3.0, 2.0])
def test_other_ranks_are_read_with_the_first(tmp_path, skew_s):
    found = diagnose(slow_rank(tmp_path / "run", slow_from=2000, skew_s=skew_s))

    (finding,) = found.findings
    assert finding.kind == "straggler"
    assert finding.evidence["rank"] == 2
    assert abs(finding.start_step - 2000) <= 100
    assert finding.noticed_step < 2500


# ------------------------------------------------------------ what a run is called


@pytest.mark.parametrize(
    ("fields", "is_said"), [({}, True), ({"time/forward": 0.1, "time/backward": 0.2}, False)]
)
def test_of_ranks_without_timed_passes_it_says_which_lines_name_a_slow_one(tmp_path, fields, is_said):
    folder = write_run(tmp_path, records=clean_run(records=50))
    (folder / "ranks").mkdir()
    steps = [
        {"event": "step", "session": 1, "global_step": step, "time": float(step), **fields}
        for step in range(9)
    ]
    (folder / "ranks" / "00001.jsonl").write_bytes(b"".join(encode(record) for record in steps))

    said = [note for note in diagnose(folder).notes if "with log.training.forward():" in note]

    assert bool(said) == is_said
