"""Names, prompts, config values and model output come from folders that anybody may have written: no markup."""

from __future__ import annotations

import json
import os
import re

import pytest

pytest.importorskip("streamlit")

import streamlit as st

from dashboard import session
from tests.dashboard.run_folders import write_run
from tests.dashboard.views.pages import (
    ESCAPED,
    EVERY_PAGE,
    OF_A_RUN,
    chart_data,
    choose,
    is_well,
    live_markup,
    markdown_of,
    open_page,
    run_table,
    said,
    texts,
)
from tests.lengths import is_long, longer
from toolkit.runfolder.labels import Labels
from toolkit.runs.files.sample_files import sample_file
from toolkit.runs.formatting import md
from toolkit.runs.store import Refused

HOSTILE = (
    "![x](https://evil.example/x.png)",
    "<img src=x onerror=alert(1)>",
    ":red[boo] :material/home: :smile:",
    "[click](javascript:alert(1))",
    "$\\frac{1}{2}$ **bold** `code` # head",
    "](https://evil.example) ]] [[",
    "a\n\n# heading\n\n- ![y](https://evil.example/y.png)\n\n<script>alert(1)</script>",
    "`\n\n![z](https://evil.example/z.png)\n\n`",
    "\u202egnp.exe \x00 \x1b[31m \ud83d",
)

# A link, all of it over several lines, and what is no letter; tests/attacks/test_poisoned_pages.py has 45 kinds.
_TRIED = range(len(HOSTILE)) if is_long() else (0, 6, 8)
for_each_text = pytest.mark.parametrize("text", [HOSTILE[number] for number in _TRIED], ids=_TRIED)

# What is left of a text once every escaped character is taken out must hold none of these.
_MARKUP = re.compile(r"!\[|\]\(|<img|<script|:red\[boo|:smile:|:material/home|\$|javascript:|https?://|\n#")


def hostile_run(root, name, text, **options):
    """Write a run that says `text` wherever a run can say something."""
    clean = text.encode("utf-8", "replace").decode()
    return write_run(
        root,
        name,
        curves={clean: lambda step: step, f"{clean}/b": float, "train_loss": float},
        start={"config": {clean: clean, "nested": {clean: [clean]}}, "host": clean, "command_line": clean},
        display_name=clean,
        project=clean,
        tags=(clean[:60], "plain"),
        labels=Labels(notes=clean),
        control={
            "log_every_now": 10,
            "actions": [clean, "save"],
            "knobs": {clean: {"type": "text", "value": clean}, f"{clean}2": {"type": "bool", "value": True}},
        },
        extra=[
            {"event": "sample", "time": 1.7e9, "path": clean, "prompt": clean, "global_step": 5},
            {"event": "sample", "time": 1.7e9, "path": f"{clean}_0.png", "prompt": clean, "global_step": 5},
            {"event": "completion", "time": 1.7e9, "prompt": clean, "completion": clean, "global_step": 5},
            {
                "event": "finding",
                "time": 1.7e9,
                "severity": "critical",
                "kind": clean,
                "message": clean,
                "metric": clean,
                "start_step": 5,
                "causes": [clean],
                "advice": clean,
                "evidence": {clean: clean},
            },
            {"event": "error", "time": 1.7e9, "type": clean, "message": clean, "traceback": clean},
            {"event": "lost", "time": 1.7e9, "records": 3, "reason": clean},
            {
                "event": "control_change",
                "time": 1.7e9,
                "id": "x",
                "setting": clean,
                "status": clean,
                "reason": clean,
            }
            | {"old": clean, "new": clean, "global_step": 7},
            {"event": "span", "name": clean, "start": 1.7e9, "duration": 1.0},
            {"event": "epoch", "epoch": clean, "time": 1.7e9},
            {"event": "end", "status": clean, "reason": clean, "time": 1.7e9},
            {
                "event": "environment",
                "accelerators": [{"index": 0, "name": clean}],
                "packages": {clean: clean},
            },
            {"event": "system", "time": 1.7e9, "gpu/0/util": 50.0},
            {"event": clean, "time": 1.7e9, clean: clean},
        ],
        **options,
    )


@for_each_text
def test_a_hostile_text_is_text_on_every_page(logs, text):
    hostile_run(logs, "hostile", text, status="failed")
    write_run(logs, "good")
    tag = text[:60].encode("utf-8", "replace").decode()
    tab = open_page("runs", "hostile", runs="hostile,good", tag=tag)

    for page in EVERY_PAGE:
        tab.switch_page(f"views/{page}.py").run()

        assert is_well(tab), page
        assert not live_markup(tab, _MARKUP), page
        for chart in chart_data(tab):
            figure = json.loads(chart)["figure"]
            assert "<img" not in figure, page
            assert "<script" not in figure, page


@for_each_text
def test_the_dialogs_of_a_hostile_run_show_its_name_as_text(logs, text):
    hostile_run(logs, "hostile", text, status="running")

    tab = open_page("alerts", "hostile")
    for entry in ("Rename and tag…", "Report…", "Export…", "Link and location…", "Delete"):
        choose(tab, entry)

        assert is_well(tab), entry
        assert not live_markup(tab, _MARKUP), entry


@for_each_text
def test_a_hostile_name_in_the_url_is_text(logs, text):
    write_run(logs, "good")
    written = text.encode("utf-8", "replace").decode()

    for page in ("overview", "compare", "runs"):
        tab = open_page(page, written, runs=written, q=written, filter=written, status=written, tag=written)

        assert is_well(tab), page
        assert not live_markup(tab, _MARKUP), page


def test_a_hostile_name_is_text_in_the_navigation_too(logs, monkeypatch):
    sections = []
    navigation = st.navigation

    def spy(pages, **options):
        sections.extend(pages)
        return navigation(pages, **options)

    write_run(logs, "r", display_name=HOSTILE[0])
    monkeypatch.setattr(st, "navigation", spy)

    open_page("overview", "r")

    assert f"Run · {md(HOSTILE[0], 28)}" in sections
    assert not any(_MARKUP.search(ESCAPED.sub("", section)) for section in sections)


@pytest.mark.parametrize("name", ["Dashboard", "  ", "Run"])
def test_a_run_called_like_a_part_of_the_navigation_takes_no_page_away(logs, name):
    write_run(logs, "r", display_name=name)

    for page in ("overview", "runs", "settings_page"):
        assert is_well(open_page(page, "r"))


@pytest.mark.filterwarnings("ignore:Possible nested set")
@pytest.mark.parametrize("text", HOSTILE[: longer(2, 6)], ids=range(longer(2, 6)))
def test_a_hostile_filter_is_text(logs, text):
    write_run(logs, "r")
    tab = open_page("metrics", "r")

    tab.text_input[0].set_value(text).run()

    assert is_well(tab)
    assert not live_markup(tab, _MARKUP)


def test_hostile_folder_names_are_listed_and_opened_like_any_other(logs):
    names = [
        b"\xff\xfe-not-utf8",
        b"![x](y)",
        b"<b>bold<b>",
        b":red[boo]",
        b"with, comma",
        b"  spaces  ",
        b"new\nline",
        b"%2e%2e",
        b"x" * 250,
        "\u202eegnahc".encode(),
    ]
    for name in names:
        os.makedirs(os.fsencode(logs) + b"/" + name)
    write_run(logs, "good")
    log = (logs / "good" / "metrics.jsonl").read_bytes()
    for name in names:
        with open(os.fsencode(logs) + b"/" + name + b"/metrics.jsonl", "wb") as file:
            file.write(log)

    tab = open_page("runs")

    assert is_well(tab)
    assert not live_markup(tab, _MARKUP)
    assert len(run_table(tab)) == len(names) + 1
    assert "good" in list(run_table(tab)["Run"])

    for key in run_table(tab)["key"]:
        opened = open_page("overview", key)

        assert is_well(opened), key
        assert not live_markup(opened, _MARKUP), key
        assert opened.get("bidi_component"), f"{key!r} has a curve"


def test_a_name_of_5000_characters_is_cut_and_the_others_are_still_listed(logs):
    folder = write_run(logs, "long", display_name="n" * 5_000)
    write_run(logs, "good")

    runs = open_page("runs")

    assert is_well(runs)
    assert "good" in list(run_table(runs)["Run"])

    tab = open_page("overview", "long")
    for page in OF_A_RUN:
        tab.switch_page(f"views/{page}.py").run()

        assert is_well(tab), page
        assert max(len(text) for text in markdown_of(tab)) < 1_000, page
    assert folder.exists()


def test_a_metric_whose_chart_fails_is_named_as_text(logs, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("broken on purpose")

    write_run(logs, "r", curves={HOSTILE[0]: float})
    monkeypatch.setattr("dashboard.components.curve_panel.curve_figure", fail)

    for page in ("metrics", "overview"):
        tab = open_page(page, "r")

        assert "could not be drawn" in said(tab), page
        assert not live_markup(tab, _MARKUP), page


def test_paths_of_a_hostile_record_open_nothing_outside_the_folder(logs):
    secret = logs.parent / "secret.txt"
    secret.write_text("the secret itself")
    paths = [
        "../../secret.txt",
        str(secret),
        "..\\..\\secret.txt",
        "a/../../../secret.txt",
        "\x00.txt",
        "\ud83d.txt",
    ]
    folder = write_run(
        logs,
        "r",
        [
            {"event": "sample", "time": 1.7e9, "path": path, "prompt": "p", "global_step": 1}
            for path in paths[:4]
        ],
    )
    (folder / "link.txt").symlink_to(secret)

    tab = open_page("samples", "r")

    assert is_well(tab)
    assert "the secret itself" not in "".join(text for _, _, text in texts(tab))
    store = session.store()
    for path in [*paths, "link.txt"]:
        with pytest.raises(Refused):
            sample_file(store, "r", path)


def test_runs_named_like_columns_of_a_table_do_not_replace_them(logs):
    write_run(logs, "a", display_name="key", start={"config": {"lr": 1, "Run": 1}})
    write_run(logs, "b", display_name="this run", start={"config": {"lr": 2, "Run": 2}})
    write_run(logs, "c", display_name="key", start={"config": {"lr": 3}})

    compare = open_page("compare", None, runs="a,b")

    assert is_well(compare)
    (settings,) = compare.dataframe
    assert list(settings.value["Run"]) == list(run_table(compare)["Run"]) == ["key (a) lr=1", "this run"]
    assert len(settings.value.columns) == 3

    tab = open_page("config_notes", "a")
    tab.selectbox(key="_diff_against").set_value("b").run()

    assert is_well(tab)
    assert any(len(table.value.columns) == 3 and "this run" in table.value.columns for table in tab.dataframe)


def test_a_run_whose_folder_is_not_utf8_has_working_dialogs(logs):
    log = write_run(logs, "good") / "metrics.jsonl"
    folder = os.fsencode(logs) + b"/\xff-run"
    os.mkdir(folder)
    with open(folder + b"/metrics.jsonl", "wb") as file:
        file.write(log.read_bytes())

    for entry in ("Rename and tag…", "Report…", "Export…", "Link and location…", "Delete"):
        assert is_well(choose(open_page("overview", "\ufffd-run"), entry)), entry
