"""metrics.csv is what a person logs, or everything where that is asked for; a run keeps the form it began with."""

from __future__ import annotations

import pandas as pd
import pytest
import yaml

from tests.records import without_padding
from tests.telemetry.logged import PATIENCE_S
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.journal.repair import repair_run
from toolkit.telemetry.runfolder.manifest import read_manifest

OF_A_PERSON = ["start", "step", "step", "eval", "checkpoint", "sample", "mine", "end"]


def log_everything(folder, **options):
    with TelemetryLogger(
        "r", log_dir=folder, log_every=1, diagnostics=False, close_timeout=PATIENCE_S, **options
    ) as log:
        log.log_start(config={"deep": [1]}, training={"batch_size": 4})
        for step in (1, 2):
            with log.span("training_iteration"):
                pass
            log.log_step(step, train_loss=0.5, reward=0.25)
        with log.span("validation_loop"):
            log.log_eval(2, val_loss=0.5)
        log.log_checkpoint(2, folder / "absent.safetensors", seconds=0.5)
        log.log_sample(2, "a.png", prompt="a cat, =1+1")
        log.log_completion(2, prompt="p", completion="c" * 5_000)
        log.log_event("mine", number=3, text="t", nested={"a": 1})
    return log.run_folder


def test_the_usual_table_is_what_a_person_logs(tmp_path):
    folder = log_everything(tmp_path)
    frame = pd.read_csv(folder / "metrics.csv")
    names = list(frame.columns)

    assert frame["event"].tolist() == OF_A_PERSON
    assert frame[frame["event"] == "step"]["reward"].tolist() == [0.25, 0.25]
    assert names.index("status") < names.index("reward") < names.index("checkpoint_path")
    assert not [name for name in names if "/" in name and not name.startswith("nested/")]
    assert not {"config", "packages", "attributes", "span_times", "evidence"} & set(names)
    assert frame["prompt"].dropna().tolist() == ["a cat, =1+1"]
    assert read_manifest(folder).table == "short"


def test_all_brings_every_record_and_every_field(tmp_path):
    folder = log_everything(tmp_path, csv="all")
    frame = pd.read_csv(folder / "metrics.csv", low_memory=False)
    records = (folder / "metrics.jsonl").read_bytes().count(b"\n")

    assert len(frame) == records
    assert {"span", "span_summary", "completion"} <= set(frame["event"])
    assert {"config", "packages", "span_times", "time/training_iteration"} <= set(frame.columns)
    assert read_manifest(folder).table == "all"


@pytest.mark.parametrize("csv", [True, "all"])
@pytest.mark.parametrize("harm", ["deleted", "cut"])
def test_repair_builds_the_table_that_the_logger_wrote(tmp_path, csv, harm):
    folder = log_everything(tmp_path, csv=csv)
    whole, before = (folder / "metrics.csv").read_bytes(), without_padding(folder / "metrics.csv")
    if harm == "deleted":
        (folder / "metrics.csv").unlink()
    else:
        (folder / "metrics.csv").write_bytes(whole[: len(whole) // 2])
    rows = repair_run(folder).rows

    assert without_padding(folder / "metrics.csv") == before
    assert rows == len(pd.read_csv(folder / "metrics.csv", low_memory=False))


@pytest.mark.parametrize(
    ("first", "then", "form"), [(True, True, "short"), ("all", True, "all"), (True, "all", "all")]
)
def test_a_resumed_run_keeps_the_form_of_its_table_unless_everything_is_asked_for(
    tmp_path, first, then, form
):
    log_everything(tmp_path, csv=first)
    folder = log_everything(tmp_path, csv=then, resume=True)
    frame = pd.read_csv(folder / "metrics.csv", low_memory=False)

    assert read_manifest(folder).table == form
    assert frame["session"].max() == 2
    assert ("span" in set(frame["event"])) == (form == "all")
    if form == "all":
        assert len(frame) == (folder / "metrics.jsonl").read_bytes().count(b"\n")
    else:
        assert frame["event"].tolist() == OF_A_PERSON * 2


def test_the_yaml_may_say_all_yes_or_no(tmp_path):
    for word, file in (("all", True), ("true", True), ("false", False)):
        block = yaml.safe_load(f"csv: {word}")
        log = TelemetryLogger(word, log_dir=tmp_path, system=False, **block)
        log.log_step(1, train_loss=0.5)
        log.close()
        assert (log.run_folder / "metrics.csv").exists() is file
