"""Runs that other tools logged are on the pages with our own, and nothing in their folders changes."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest

from dashboard import session
from tests.dashboard.views.pages import OF_A_RUN, open_page
from tests.importers import samples
from tests.lengths import in_make_faults
from tests.made_runs import write_run
from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.runs.files.sample_files import sample_file

SOME = (
    "tensorboard/tensorboardx_2_6_everything/run_b",
    "hf_trainer_state/nan_and_resume_5_22",
    "trackio/sqlite_0_43",
)


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def some(logs):
    for name in SOME:
        shutil.copytree(samples.ours() / name, logs / name)
    return logs


def table(tab):
    return tab.run_table().set_index("Run")


def key_of(tab, name):
    """Return the key of the run with this name, by opening the list."""
    return tab.run_table().set_index("Run")["key"][name]


def test_the_list_shows_them_with_our_own(some):
    write_run(some, "ours")

    tab = open_page("runs")

    shown = table(tab)
    assert set(shown["Logged by"]) == {"", "TensorBoard", "Hugging Face", "Trackio"}
    row = shown.loc["run_b"]
    assert (row["Status"], row["Step"], row["Loss (last)"]) == ("◌ No end", "89", "0.2434")
    assert shown.loc["nan_and_resume_5_22"]["Status"] == "■ Finished"
    assert shown.loc["ours"]["Logged by"] == ""


@pytest.mark.parametrize("search", ["tool:tensorboard", 'status:"no end" run_b'])
def test_they_are_searched_for_like_ours(some, search):
    assert list(table(open_page("runs", q=search)).index) == ["run_b"]


def test_the_pages_of_a_run_have_its_badge_curves_alerts_and_origin_and_no_control(some):
    key = key_of(open_page("runs"), "run_b")
    tab, alerts, notes = (open_page(page, key) for page in ("overview", "alerts", "config_notes"))

    assert "TensorBoard" in tab.badges()
    assert tab.cards()["Train loss"]
    assert tab.charts() >= 2
    assert not [item for item in tab.button if item.label == "Apply"]
    assert "loss is NaN or infinite" in alerts.said()
    origin = next(table for table in notes.tables() if "format" in set(table.get("name", ())))
    assert dict(origin.itertuples(index=False, name=None))["format"] == "tensorboard"


def test_images_texts_and_tables_are_on_the_samples_page(some):
    key = key_of(open_page("runs"), "run_b")
    tab = open_page("samples", key)

    shown = [item for row in tab.samples()["rows"] for items in row["cells"] for item in items]
    assert len(shown) >= 6
    for item in shown:
        assert sample_file(session.store(), key, item[1]).content_type.startswith("image/")
    assert "**weights** 1 logged" in tab.said() or "weights" in json.dumps(tab.figures())
    assert "step *" in "".join(code.value for code in tab.code)


@in_make_faults
def test_rollouts_are_completions_on_the_samples_page(logs):
    shutil.copytree(Path(samples.__file__).with_name("rollouts"), logs / "rollouts")
    runs = open_page("runs")
    tab = open_page("samples", key_of(runs, "rollout"))

    assert set(table(runs)["Logged by"]) == {"Rollouts"}
    assert [code.value for code in tab.code][-1] == "#### 5"


def test_what_a_tool_does_not_log_is_not_waited_for_and_our_own_functions_are_not_named(some):
    key = key_of(open_page("runs"), "nan_and_resume_5_22")
    tab, timeline = open_page("samples", key), open_page("machine", key)

    assert "This Hugging Face log has no images, texts, tables, histograms or completions." in tab.said()
    assert "log_sample" not in tab.said()
    assert "This Hugging Face log has no events." in timeline.said()
    assert "log.span" not in "".join(code.value for code in timeline.code)


def test_a_run_of_a_tool_that_is_not_installed_names_the_package(logs, monkeypatch):
    monkeypatch.setitem(sys.modules, "aim", None)
    (logs / ".aim" / "meta" / "chunks" / "abc").mkdir(parents=True)
    (logs / ".aim" / "seqs").mkdir()
    key = open_page("runs").run_table()["key"][0]

    for page in ("overview", "metrics", "alerts"):
        tab = open_page(page, key)

        assert "No metrics in this Aim log." in tab.said()
        assert "pip install aim" in tab.said()
        assert "Waiting for the first record." not in tab.said()


POISON = "![x](evil.example) <img src=x onerror=alert(1)> :red[boo] $x$"
MARKUP = re.compile(r"!\[x|\]\(|<img|:red\[boo|\$x")


@in_make_faults
def test_a_poisoned_name_of_each_format_is_text_and_no_page_changes_its_folder(logs):
    for folder in samples.ours().iterdir():
        if folder.is_dir():
            # Most runs are called like a folder.
            shutil.copytree(folder, logs / folder.name / POISON, symlinks=True)
    for path in logs.rglob("meta.yaml"):
        if "run_id" in path.read_text("utf-8"):
            text = re.sub(r"(?m)^run_name:.*$", "", path.read_text("utf-8"))
            path.write_text(f"{text}\nrun_name: '{POISON}'\n", "utf-8")
    for path in (logs / "trackio").rglob("*.db"):
        database = sqlite3.connect(path)
        database.execute("UPDATE metrics SET run_name = ? || run_name", (POISON,))
        database.execute("UPDATE metrics SET metrics = replace(metrics, 'loss', ?)", (f"{POISON}loss",))
        database.commit()
        database.close()
    keys, before = keys_below(logs), samples.fingerprint(logs)
    named = [source for source in find_sources(logs).runs if POISON in source.info.name]

    assert {"mlflow", "trackio"} <= {source.info.format for source in named}
    assert len(keys) >= 25
    for page in ("runs", "compare"):
        tab = open_page(page, runs=",".join(keys[:8]))
        assert not tab.live_markup(MARKUP)
    for key in keys:
        for page in OF_A_RUN:
            tab = open_page(page, key)
            assert not tab.live_markup(MARKUP), (page, key)
    assert samples.fingerprint(logs) == before


def keys_below(logs, name="."):
    """Return the keys of the runs below a folder."""
    return [
        f"{source.info.format}~{source.info.source_id[:12]}"
        for source in find_sources(logs).runs
        if not source.info.deleted
        and source.info.pieces
        and (logs / source.info.pieces[0].path).is_relative_to(logs / name)
    ]
