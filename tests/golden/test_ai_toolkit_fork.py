"""A folder that ai-toolkit's telemetry fork wrote: every reader reads the same of it, and nothing is taken from it.

The fork's own logger wrote the sample. It has no run.json, no sessions and no numbers on its records, and the bare
words NaN and Infinity in them, which JSON does not have.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import zipfile
from pathlib import Path

import pytest

from toolkit.telemetry.runs.findings.alerts import alerts_of
from toolkit.telemetry.runs.sources.local_store import LocalStore
from tests.telemetry.logged import PATIENCE_S
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.reader import read_from
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.timing.history import read_run_time

SAMPLE = Path(__file__).parent / "ai_toolkit_fork" / "greyjacket"
LAST_STEP, STEPS, SECONDS = 18, 18, 46.0


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(SAMPLE, tmp_path / "logs" / "greyjacket"))


@pytest.fixture
def store(folder):
    return LocalStore([folder.parent], cache_dir=None)


@pytest.fixture
def said(capsys):
    def said(*arguments):
        code = main([str(argument) for argument in arguments])
        return code, capsys.readouterr().out

    return said


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rows_of(table):
    return list(csv.DictReader(io.StringIO(table)))


def test_every_line_is_a_record_and_no_value_is_lost(folder):
    chunk = read_from(folder / "metrics.jsonl")
    lines = (folder / "metrics.jsonl").read_text().splitlines()

    assert chunk.bad_count == 0
    for line, record in zip(lines, chunk.records, strict=True):
        for name, value in json.loads(line).items():
            found = with_non_finite(record)[name]
            assert found == value or (math.isnan(found) and math.isnan(value))


def test_repair_leaves_what_another_program_wrote_as_it_is(folder, said):
    before = contents(folder)
    code, printed = said("repair", folder)

    assert (code, contents(folder)) == (0, before)
    assert "22 records of another program" in printed
    assert "metrics.csv was not changed" in printed


def test_repair_builds_the_table_that_is_not_there(folder, said):
    (folder / "metrics.csv").unlink()
    code, printed = said("repair", folder)
    rows = rows_of((folder / "metrics.csv").read_text())

    assert code == 0
    assert "metrics.csv now has 22 rows" in printed
    assert [row["global_step"] for row in rows if row["event"] == "step"] == [str(n) for n in range(1, 19)]
    assert [row["train_loss"] for row in rows if row["global_step"] in ("11", "12")] == ["0.39", "nan"]


def test_doctor_says_the_same_of_the_folder_and_of_the_file_in_it(folder, said):
    answers = []
    for path in (folder, folder / "metrics.jsonl"):
        code, printed = said("doctor", "--json", path)
        answers.append((code, json.loads(printed)))
    (code, of_folder), (code_of_file, of_file) = answers

    assert (code, code_of_file) == (1, 1)
    assert of_folder["findings"] == of_file["findings"] != []
    assert (
        (of_folder["records"], of_folder["bad_lines"])
        == (of_file["records"], of_file["bad_lines"])
        == (22, 0)
    )


def test_the_alerts_page_has_what_doctor_finds(folder, store, said):
    found = json.loads(said("doctor", "--json", folder)[1])["findings"]
    store.refresh("greyjacket", wait_s=PATIENCE_S)
    store.examine("greyjacket", wait_s=PATIENCE_S)

    reported = [(finding["kind"], finding["start_step"], finding["severity"]) for finding in found]
    assert [
        (alert.kind, alert.start_step, alert.severity) for alert in alerts_of(store, "greyjacket")
    ] == reported


def test_the_list_shows_step_loss_and_how_long_it_took(store):
    (card,) = store.list_runs().cards

    assert (card.step, card.max_steps, card.progress) == (LAST_STEP, STEPS, 1.0)
    assert (card.loss, card.lr, card.epoch) == (0.32, 1e-4, 0.0)
    assert card.duration_s == SECONDS
    assert len(store.trends(["greyjacket"])["greyjacket"]) == STEPS - 2


def test_a_loss_that_is_nan_at_the_end_is_shown_as_such(folder, store):
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:15]))
    (card,) = store.list_runs().cards

    assert card.step == 13
    assert math.isnan(card.loss)


def test_the_curves_have_every_step(store):
    store.refresh("greyjacket", wait_s=PATIENCE_S)
    loss = next(info for info in store.metrics("greyjacket") if info.name == "train_loss")

    assert (loss.count, loss.non_finite, loss.last_step) == (STEPS, 2, LAST_STEP)


def test_time_says_how_long_it_took(folder, store, said):
    code, printed = said("time", folder)

    assert code == 0
    assert printed.startswith("greyjacket: 46 s of wall time\n")
    assert store.time_spent("greyjacket", wait_s=PATIENCE_S).ledger.wall_s == SECONDS


def test_the_time_between_two_starts_is_not_counted(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    later = [json.loads(line) for line in lines]
    for record in later:
        record["time"] += 86_400.0
    (folder / "metrics.jsonl").write_text("\n".join([*lines, *map(json.dumps, later)]) + "\n")
    ledger = read_run_time(folder).ledger

    assert ledger.wall_s == 2 * SECONDS
    assert sum(line.seconds for line in ledger.lines) == pytest.approx(2 * SECONDS)


def test_a_shared_bundle_has_all_of_it(folder, tmp_path, said):
    code, _ = said("export", "--to", "zip", folder, "-o", tmp_path / "shared.zip")
    with zipfile.ZipFile(tmp_path / "shared.zip") as bundle:
        (table,) = [name for name in bundle.namelist() if name.endswith("metrics.csv")]
        (lines,) = [name for name in bundle.namelist() if name.endswith("metrics.jsonl")]

        assert code == 0
        assert len(rows_of(bundle.read(table).decode())) == 22
        assert len(bundle.read(lines).splitlines()) == 22


def test_a_run_of_the_same_name_does_not_write_into_it(folder):
    before = contents(folder)
    with TelemetryLogger("greyjacket", folder.parent, resume=True, system=False) as log:
        log.log_step(1, train_loss=1.0)

    assert log.run_folder == folder.parent / "greyjacket-2"
    assert contents(folder) == before
