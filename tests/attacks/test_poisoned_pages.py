"""One poisoned run folder hides no other run, and breaks no page: not with half characters, nor with odd numbers."""

from __future__ import annotations

import json
import os
import random
import re

import pytest

pytest.importorskip("streamlit")

import numpy as np
import streamlit as st

import dashboard
from dashboard import session
from dashboard.components.page_states import trace_of
from dashboard.components.script import component_key
from dashboard.settings import DashboardSettings
from tests.attacks.hostile_runs import LONG, WIDE, Poison, half_characters, payloads, png, poisoned_run
from tests.dashboard.views.pages import EVERY_PAGE, OF_A_RUN, open_page
from tests.lengths import in_make_faults, longer
from tests.made_runs import append, write_run
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.reader import records_of
from toolkit.telemetry.runs.files.sample_files import sample_file
from toolkit.telemetry.runs.store import Refused

_BEACON = "127.0.0.1:9"
_KINDS = len(payloads(_BEACON))

# What is left of a text once every escaped character is taken out holds none of these.
_MARKUP = re.compile(
    r"!\[|\]\(|<(img|script|svg|iframe|a|b)\b|:red\[pwn|:smile:|material/skull|\$|https?://|\n# pwn"
)


@pytest.fixture(autouse=True)
def _as_in_a_fresh_process(monkeypatch):
    # Each new tab would read the metadata of every installed package for components; ours comes with its page.
    monkeypatch.setattr("streamlit.components.v2.manifest_scanner.scan_component_manifests", list)
    st.cache_resource.clear()
    yield
    st.cache_resource.clear()


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """A log directory for the dashboard."""
    folder = tmp_path / "logs"
    folder.mkdir()
    settings = DashboardSettings(log_dirs=(folder,), cache_dir=tmp_path / "cache")
    monkeypatch.setattr(DashboardSettings, "in_use", settings)
    return folder


@pytest.mark.parametrize("first", range(0, _KINDS, longer(_KINDS, 1)))
def test_every_page_of_a_poisoned_run_is_whole_and_holds_no_markup(logs, first, record_property):
    poisoned_run(logs, "poisoned", Poison(_BEACON, first), live=first % 2 == 1, tag="poisoned")
    write_run(logs, "good", start={"config": {"lr": 0.1}})
    tab = open_page("runs", "poisoned", runs="poisoned,good", tag="poisoned", shown="12")
    seen = 0

    for page in EVERY_PAGE:
        tab.go_to(page)

        assert tab.is_well(), page
        assert not tab.live_markup(_MARKUP), page
        for data in tab.sent("figure"):
            assert not re.search(r"<(?!br>|/?b>|extra>|/extra>)\w", data["figure"]), page
        seen += sum(1 for _ in tab.texts())
    record_property(
        "measured", f"{_KINDS} kinds of payload, {len(EVERY_PAGE)} pages, {seen:,} texts, 0 obeyed"
    )


@in_make_faults
def test_one_poisoned_run_among_three_good_ones_leaves_them_listed_and_usable(logs, record_property):
    good = ("one", "two", "three")
    for name in good:
        write_run(logs, name)
    poisoned_run(logs, "poisoned", Poison(_BEACON, 3))
    half_characters(poisoned_run(logs, "halves", Poison(_BEACON, 9)))
    not_utf8 = os.fsdecode(b"\xff\xfe not utf-8")
    poisoned_run(logs, not_utf8, Poison(_BEACON, 11))

    runs = open_page("runs")
    listed = list(runs.run_table()["Run"])

    assert runs.is_well()
    assert len(listed) == 6
    assert set(good) <= set(listed)
    for name in good:
        tab = open_page("overview", name)
        assert tab.is_well()
        assert tab.charts() >= 1
    for key in runs.run_table()["key"]:
        assert open_page("overview", key).is_well(), key
        assert open_page("config_notes", key).is_well(), key
    compared = open_page("compare", None, runs="one,poisoned,halves")
    assert compared.is_well()
    record_property("measured", f"{len(listed)} of 6 runs listed, 3 of them poisoned")


@pytest.mark.parametrize(
    "name", ["loss__total", "trailing_", "__proto__", "x" * 5_000, "a\nb", "@critical", "@constructor/0.5"]
)
def test_a_run_and_a_metric_may_be_called_anything(logs, name):
    folder = "".join(character for character in name if character not in "/\n")[:200]
    write_run(logs, folder, curves={name: float, "train_loss": float})
    tab = open_page("overview", folder)

    for page in ("overview", "metrics"):
        tab.go_to(page)

        assert tab.is_well(), page
        assert tab.charts() == 2, page


_ODD = (None, True, -1, 2**70, 1e308, -1e308, 1e-320, 1.5, "", "NaN", "3", [], [[]], [None], [1, "a", {}], {})
_ODD += ({"a": {"b": [1]}}, {"": None}, [0] * 50, float("nan"), float("inf"))
_OTHER_KINDS = (
    {
        "event": "table",
        "global_step": 3,
        "name": "t",
        "columns": ["a"],
        "rows": [[1], [None]],
        "rows_in_all": 9,
    },
    {"event": "histogram", "global_step": 3, "name": "h", "low": 0.0, "high": 1.0, "counts": [1, 2]},
    {"event": "batch", "global_step": 3, "ids": [1, 2], "indices": [3], "rank": 0},
    {"event": "tags", "tags": ["a"]},
    {"event": "summary", "values": {"best": 1.0}},
    {"event": "start", "session": 2, "resumed_from": 3, "rank": 1, "world_size": 2},
)


def odd_places(value, chance):
    """Return a copy of `value` in which some values, on any level, are of another kind or size."""
    if chance.random() < 0.05:
        return chance.choice(_ODD)
    if isinstance(value, dict):
        return {key[:40]: odd_places(item, chance) for key, item in [*value.items()][:30]}
    return [odd_places(item, chance) for item in value[:5]] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(longer(1, 20)))
def test_values_of_another_kind_in_any_record_break_no_page(logs, tmp_path, seed):
    chance = random.Random(seed)
    poisoned = poisoned_run(tmp_path, "poisoned", Poison(_BEACON, seed)) / METRICS_JSONL
    records = [*records_of(poisoned), *_OTHER_KINDS]
    odd = [odd_places(record, chance) for record in records for _ in range(2)]
    odd += [{"event": ["step"]}, {"event": {"a": 1}}, {"event": "environment", "packages": 1.5}]
    folder = write_run(logs, "r", sessions=[range(5), range(5, 9)])
    append(folder, [{"time": 1.7e9, **record} for record in odd if isinstance(record, dict)])

    for page in OF_A_RUN:
        assert open_page(page, "r").is_well(), page
    assert open_page("runs", show="Sweep").is_well()


def test_the_key_of_a_component_is_short_unique_and_has_no_double_underscore():
    names = ["a", "a_b", "a__b", "a--b", "a_-b", "a_", "a__", "x" * 5_000, "x" * 5_001, "\ud800__"]
    keys = [component_key(name) for name in names]

    assert keys[:2] == names[:2]
    assert len(set(keys)) == len(names)
    assert all(len(key) <= 200 and "__" not in key and not key.endswith("_") for key in keys)


def test_an_invalid_knob_leaves_the_others_and_the_buttons(logs):
    knobs = {
        "too large": {"type": "int", "low": 0, "high": 2**63, "value": 2**63},
        "upside down": {"type": "int", "low": 10, "high": 1, "value": 5},
        "texts": {"type": "float", "low": "a", "high": [], "value": {}},
        "outside": {"type": "float", "low": 0.0, "high": 1.0, "value": 1e308},
        "whole": {"type": "int", "low": 0.5, "high": 9, "value": "3"},
        "alone": {"type": "int", "high": -5},
        "no kind": {"type": {"a": 1}, "value": WIDE},
        "honest": {"type": "float", "low": 0.0, "high": 1.0, "value": 0.25},
    }
    write_run(logs, "r", status="running", control={"actions": ["save", "stop"], "knobs": knobs})
    tab = open_page("overview", "r")

    assert tab.is_well()
    shown = {widget.label: widget.value for widget in tab.number_input}
    assert shown["honest"] == 0.25
    assert shown["outside"] == 1.0
    assert shown["alone"] == -5
    assert {"Save", "Stop"} <= {button.label for button in tab.button}
    assert max(len(text) for kind, _, text in tab.texts() if kind == "text_input") <= 2_000


def test_a_small_file_with_a_huge_image_takes_no_memory(logs):
    folder = write_run(
        logs,
        "r",
        extra=[
            {"event": "sample", "time": 1.7e9, "path": path, "prompt": "p", "global_step": 1}
            for path in ("tall.png", "good.png", "torn.png")
        ],
    )
    (folder / "tall.png").write_bytes(png(2, 2_000_000))
    (folder / "good.png").write_bytes(png(8, 8))
    (folder / "torn.png").write_bytes(png(8, 8)[:45] + b"x" * 40)
    # Enlarged like any small picture, it would be 196 GB.
    assert (folder / "tall.png").stat().st_size < 100_000

    assert open_page("samples", "r").is_well()
    store = session.store()
    for path, words in (("tall.png", "2 x 2,000,000 pixels, too large"), ("torn.png", "not an image")):
        for small in (False, True):
            with pytest.raises(Refused, match=words):
                sample_file(store, "r", path, small=small)
    assert sample_file(store, "r", "good.png").content_type == "image/png"


def test_sessions_with_numbers_that_no_column_holds_are_listed(logs):
    manifest = write_run(logs, "r") / "run.json"
    about = json.loads(manifest.read_bytes())
    odd = [{**about["sessions"][0], "session": number, "pid": number} for number in (-1, 2**64 - 1)]
    manifest.write_text(json.dumps({**about, "sessions": odd}))

    tab = open_page("config_notes", "r")

    assert tab.is_well()
    assert any(str(2**64 - 1) in table.to_string() for table in tab.tables())


def test_a_finding_and_an_error_with_one_id_are_two_alerts(logs):
    about = {"time": 1.7e9, "id": "the same", "message": "m", "seq": 1, "session": 1}
    finding = {"kind": "k", "severity": "critical", "metric": "train_loss", "state": "open", "start_step": 1}
    write_run(
        logs,
        "r",
        extra=[
            {"event": "finding", "noticed_step": 2, **finding, **about},
            {"event": "error", "type": "E", "traceback": LONG, **about},
        ],
    )
    tab = open_page("alerts", "r")

    assert tab.is_well()
    assert tab.said().count("[✕ Critical]") == 2
    assert max(len(code.value) for code in tab.code) <= 64 * 1024


def test_what_a_span_says_of_itself_cannot_pass_for_another_line_of_ours(logs):
    span = {
        "id": "1",
        "name": "forward",
        "start": 1.7e9 + 1,
        "duration": 0.5,
        "session": 1,
        "time": 1.7e9 + 2,
    }
    fields = {"clock": "a\nb", "thread": "x\nstill open", "attributes": {"k\nstep 7": "v\n\n\n12 s"}}
    write_run(logs, "r", extra=[{"event": "span", **span, **fields}])
    [text] = [
        trace["text"]
        for figure in open_page("machine", "r").figures().values()
        for trace in figure["data"]
        if "forward" in trace.get("name", "")
    ]

    assert text == ["500 ms (a b clock)<br>thread x still open<br>k step 7 = v 12 s"]


def test_a_tag_with_brackets_is_shown_as_it_is(logs):
    write_run(logs, "r", tags=("a] ![b](c)",))

    said_there = open_page("overview", "r").said()

    assert "a] ![b](c)" in said_there


@pytest.mark.parametrize(
    "asked",
    [("-inf", "inf"), ("nan", "1"), ("-1e308", "1e308"), ("1e400", "2e400"), ("0", "1e-320")][
        :: longer(2, 1)
    ],
)
def test_an_invalid_axis_range_breaks_no_page(logs, asked):
    write_run(logs, "r", labels=Labels(notes="n"))
    tab = open_page("overview", "r", **{"from": asked[0], "to": asked[1]})

    for page in OF_A_RUN:
        tab.go_to(page)

        assert tab.is_well(), page
        assert isinstance(tab.figures(), dict), page


# ---------------------------------------------------------------- what a page that fails tells


def paths_in(text):
    """Return what looks like a place on this machine."""
    roots = (
        os.path.dirname(os.path.dirname(dashboard.__file__)),
        os.path.expanduser("~"),
        "/usr/",
        "/home/",
        "/root/",
    )
    return [root for root in roots if root in text] + re.findall(r'File "/[^"]*"', text)


def test_a_region_that_fails_shows_our_panel_without_a_path_of_the_server(logs, monkeypatch):
    def fail(*_args, **_kwargs):
        try:
            np.zeros(3).reshape(2)
        except ValueError as error:
            raise RuntimeError(
                f"broken in {dashboard.__file__} and {os.path.expanduser('~/secret')}"
            ) from error

    write_run(logs, "r")
    monkeypatch.setattr("dashboard.components.curve_panel.draw_curves", fail)
    tab = open_page("overview", "r", may_break=True)
    everything = tab.said() + "".join(code.value for code in tab.code)

    assert "could not be drawn. The rest of the page still works" in everything
    assert 'File "dashboard/components/page_states.py"' in everything
    assert "ValueError: cannot reshape" in everything
    assert "RuntimeError: broken in dashboard/__init__.py and ~/secret" in everything
    assert paths_in(everything.replace(str(logs), "")) == []


def test_the_trace_of_an_endless_recursion_is_short():
    def again(number):
        return again(number + 1) + json.dumps(WIDE).count("x")

    with pytest.raises(RecursionError) as caught:
        again(0)

    assert len(trace_of(caught.value)) < 21_000
