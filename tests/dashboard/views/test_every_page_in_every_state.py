"""Every page in every state a log directory can be in: nothing breaks, and the state has a face."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from tests.dashboard.views.pages import (
    EVERY_PAGE,
    OF_A_RUN,
    badges,
    cards,
    charts,
    curve_charts,
    go_to,
    headings,
    is_well,
    open_page,
    run_table,
    said,
    tables,
)
from tests.lengths import is_long
from tests.made_runs import append, step_record, write_run
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_JSONL
from toolkit.telemetry.runs.listing import run_listing

RUN = "the-run"


# ---------------------------------------------------------------- states


def _no_runs(root: Path) -> None:
    root.mkdir()


def _no_folder(root: Path) -> None:
    """Nobody has logged anything yet, so the folder itself is not there."""


def _no_records(root: Path) -> None:
    write_run(root, RUN, [], status="starting", summary={})


def _unreadable(root: Path) -> None:
    # The tests may run as root, whom no permission keeps out: folders in the place of the files do.
    folder = write_run(root, RUN)
    for name in (MANIFEST, METRICS_JSONL):
        (folder / name).unlink()
        (folder / name).mkdir()


def _no_manifest(root: Path) -> None:
    write_run(root, RUN, status=None)


def _manifest_of_nonsense(root: Path) -> None:
    folder = write_run(root, RUN)
    (folder / MANIFEST).write_text("this is not JSON {")


def _bad_lines(root: Path) -> None:
    folder = write_run(root, RUN)
    with (folder / METRICS_JSONL).open("ab") as file:
        file.write(b"not json\n\xff\xfe\xfd\n[1,2,3]\n")
    append(folder, [step_record(100, train_loss=0.5)])


def _cut(root: Path) -> None:
    log = write_run(root, RUN) / METRICS_JSONL
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:15]))


def _nothing_but_garbage(root: Path) -> None:
    folder = write_run(root, RUN, [])
    (folder / METRICS_JSONL).write_bytes(b"\x00\xff garbage\n" * 50)


def _one_point(root: Path) -> None:
    write_run(root, RUN, sessions=(range(1),))


def _cpu_only(root: Path) -> None:
    write_run(
        root,
        RUN,
        status="running",
        curves={
            "train_loss": lambda step: 1 / (1 + step),
            "sec_per_step": lambda step: 0.5,
            "cpu_mem_rss_mb": lambda step: 900.0 + step,
        },
        extra=[
            {"event": "system", "time": 1.7e9, "process_cpu_percent": 95.0, "cpu_percent": 40.0},
            {"event": "system", "time": 1.7e9 + 5, "process_cpu_percent": 97.0, "cpu_percent": 42.0},
        ],
    )


def _custom_only(root: Path) -> None:
    write_run(
        root, RUN, curves={"reward/mean": lambda step: step, "kl": lambda step: 0.1, "my loss": lambda s: 1}
    )


def _nan_only(root: Path) -> None:
    write_run(root, RUN, [step_record(step, train_loss=math.nan, lr=math.inf) for step in range(20)])


def _large(root: Path) -> None:
    write_run(
        root,
        RUN,
        sessions=(range(20_000),),
        curves={"train_loss": lambda step: 9.0 if step == 12_345 else 1.0, "lr": lambda step: 1e-4},
    )


def _resumed(root: Path) -> None:
    write_run(root, RUN, sessions=(range(100), range(60, 160), range(150, 200)))


def _unfinished_line(root: Path) -> None:
    folder = write_run(root, RUN, status="running")
    with (folder / METRICS_JSONL).open("ab") as file:
        file.write(b'{"event":"step","global_step":100,"train_l')


def _no_record_file(root: Path) -> None:
    folder = write_run(root, RUN, status="running")
    (folder / METRICS_JSONL).unlink()


def _thousand(root: Path) -> None:
    for number in range(1_000):
        write_run(root, f"run-{number:04d}", [], status="finished")
    write_run(root, RUN, status="running")


def _odd_records(root: Path) -> None:
    """Well-formed lines whose fields are not what anyone would expect."""
    write_run(
        root,
        RUN,
        extra=[
            {"event": "checkpoint", "time": 1.7e9, "seconds": "long", "global_step": "7", "is_best": []},
            {"event": "sample", "time": "now", "path": 7, "prompt": ["a"]},
            {"event": "sample", "time": 1.7e9, "path": "", "prompt": None},
            {
                "event": "finding",
                "severity": ["critical"],
                "message": {"a": 1},
                "causes": 7,
                "advice": {"b": 2},
            },
            {"event": "finding", "severity": "critical", "evidence": [1], "start_step": 1e308, "time": 1e300},
            {"event": "error", "message": None, "traceback": 5, "time": None},
            {"event": "lost", "records": "many", "reason": None},
            {"event": "control_change", "status": 5, "id": [1], "actions": 7, "old": {}, "new": []},
            {"event": "control_change", "status": "applied", "actions": "stop", "global_step": 5},
            {"event": "span", "name": None, "start": "x", "duration": []},
            {"event": "span", "name": "data", "start": 1.7e9, "duration": 0.5},
            {"event": "epoch", "epoch": "one", "time": 1.7e9},
            {"event": "completion", "prompt": 7, "completion": None, "global_step": 1.5},
            {"event": "environment", "accelerators": [7, {"index": "0"}], "packages": "none"},
            {"event": "end", "status": None, "reason": 3},
            {"event": 7, "time": 1.7e9},
            {"event": "start", "session": "x", "config": [1, 2], "time": -1e300},
        ],
    )


STATES = {
    write.__name__.lstrip("_"): write
    for write in (
        _no_runs,
        _no_folder,
        _no_records,
        _unreadable,
        _no_manifest,
        _manifest_of_nonsense,
        _bad_lines,
        _cut,
        _nothing_but_garbage,
        _one_point,
        _cpu_only,
        _custom_only,
        _nan_only,
        _large,
        _resumed,
        _unfinished_line,
        _no_record_file,
        _thousand,
        _odd_records,
    )
}


_TAKE_LONG = ("large", "thousand")


@pytest.fixture(scope="module")
def root_in(tmp_path_factory):
    """Log directories in a state, written once."""
    written = {}

    def root(state):
        # A live run is live for some seconds only, so what is quickly written is written for each test.
        if state not in written or state not in _TAKE_LONG:
            written[state] = tmp_path_factory.mktemp(state) / "logs"
            STATES[state](written[state])
        return written[state]

    return root


def _shows_the_lines_to_paste(tab, root):
    assert "No runs yet" in [heading.value for heading in tab.header]
    assert str(root) in said(tab)
    starts = (
        "telemetry:\n  enabled: true",
        "from toolkit.telemetry import TelemetryLogger",
        "telemetry train ",
    )
    for start in starts:
        (lines,) = [code.value for code in tab.code if code.value.startswith(start)]
        assert str(root) in lines, "what is pasted logs where this page looks"


def _waits_for_the_first_record(tab, root):
    assert "Starting" in badges(tab)
    assert "Waiting for the first record." in said(tab)


def _shows_the_path_and_why_it_cannot_be_read(tab, root):
    assert "Unreadable" in badges(tab)
    assert "This run cannot be read" in [heading.value for heading in tab.header]
    assert any(str(root / RUN) in code.value and MANIFEST in code.value for code in tab.code)


def _counts_the_bad_lines(tab, root):
    assert any("3 lines could not be read" in warning.value for warning in tab.warning)
    assert "The file itself is unchanged." in said(tab)


def _says_that_records_are_missing(tab, root):
    assert any("records are missing" in warning.value for warning in tab.warning)


SHOWN = {
    "no_runs": (_shows_the_lines_to_paste, EVERY_PAGE),
    "no_folder": (_shows_the_lines_to_paste, EVERY_PAGE),
    "no_records": (_waits_for_the_first_record, ["overview", "metrics", "machine", "alerts"]),
    "unreadable": (_shows_the_path_and_why_it_cannot_be_read, OF_A_RUN),
    "bad_lines": (_counts_the_bad_lines, OF_A_RUN),
    "cut": (_says_that_records_are_missing, OF_A_RUN),
}
"""What pages show in a state, and which of them."""


@pytest.mark.parametrize("state", STATES)
def test_no_page_breaks_in_this_state_and_each_shows_it(state, root_in, look_at):
    root = root_in(state)
    look_at(root)
    shows, pages = SHOWN.get(state, (None, ()))
    tab = open_page("runs", RUN, runs=RUN)
    takes_long = state in ("large", "thousand") and not is_long()
    for page in ("overview", "metrics", "machine") if takes_long else EVERY_PAGE:
        assert is_well(go_to(tab, page)), page
        if page in pages:
            shows(tab, root)


# ---------------------------------------------------------------- faces


@pytest.mark.parametrize(
    ("state", "page", "words"),
    [
        ("no_folder", "runs", "does not exist yet"),
        ("no_records", "samples", "log.log_sample("),
        ("manifest_of_nonsense", "overview", "run.json is not JSON"),
        ("manifest_of_nonsense", "overview", "102 records"),
        ("bad_lines", "overview", "103 records"),
        ("nan_only", "alerts", "train_loss is NaN or infinite from the first record on (20 records)"),
        ("unfinished_line", "overview", "101 records"),
        ("no_record_file", "overview", f"{METRICS_JSONL}: No such file"),
    ],
)
def test_a_state_has_its_words(state, page, words, root_in, look_at):
    look_at(root_in(state))

    tab = open_page(page, None if page == "runs" else RUN)

    assert words in said(tab)
    if state == "manifest_of_nonsense":
        assert "Unreadable" in badges(tab)
    if state == "unfinished_line":
        assert "could not be read" not in said(tab)
    if state == "nan_only":
        assert cards(open_page("overview", RUN))["Train loss"] == "NaN"


def test_an_unreadable_folder_stays_in_the_list_with_its_fault(root_in, look_at):
    look_at(root_in("unreadable"))

    table = run_table(open_page("runs"))

    assert list(table["Status"]) == ["✕ Unreadable"]
    assert MANIFEST in table["Problem"][0]


def test_a_folder_that_may_not_be_entered_shows_what_would_open_it(logs, monkeypatch):
    write_run(logs, "other")
    folder = write_run(logs, RUN)
    look = run_listing._stat

    def refuse(path):
        if os.path.dirname(path) == str(folder):
            raise PermissionError(13, "Permission denied")
        return look(path)

    # Nothing keeps root out, as whom the tests may run.
    monkeypatch.setattr(run_listing, "_stat", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder)
    (folder / METRICS_JSONL).unlink()

    tab = open_page("overview", RUN)

    assert is_well(tab)
    assert "Permission denied" in said(tab)
    assert any("chmod" in code.value for code in tab.code)
    assert sorted(run_table(open_page("runs"))["Run"]) == ["other", RUN]


def test_the_sessions_tab_lists_bad_lines_with_place_and_reason(root_in, look_at):
    look_at(root_in("bad_lines"))

    found = tables(open_page("config_notes", RUN))

    assert any(list(table.columns) == ["byte", "length", "reason"] and len(table) == 3 for table in found)


@pytest.mark.parametrize("page", ["overview", "metrics"])
def test_a_single_point_has_its_chart(page, root_in, look_at):
    look_at(root_in("one_point"))

    tab = open_page(page, RUN)

    assert charts(tab) == 1


def test_a_run_on_the_cpu_shows_the_cpu_and_says_why_there_is_no_gpu(root_in, look_at):
    look_at(root_in("cpu_only"))

    assert "Process CPU" in cards(open_page("overview", RUN))

    system = open_page("machine", RUN)

    assert "No GPU metrics: the run uses the CPU" in said(system)
    assert "CPU :gray[%]" in headings(system)


def test_a_run_with_only_metrics_of_its_own_draws_them(root_in, look_at):
    look_at(root_in("custom_only"))

    tab = open_page("overview", RUN)

    assert {"reward/mean", "kl", "my loss"} <= set(cards(tab))
    assert charts(tab) == 3
    assert charts(open_page("metrics", RUN)) == 3


def test_of_a_large_run_the_page_is_sent_no_values(root_in, look_at):
    look_at(root_in("large"))

    tab = open_page("overview", RUN)

    assert "20,002 records" in said(tab)
    assert len(json.dumps(curve_charts(tab)[0])) < 2_000


def test_a_resumed_run_is_marked_where_each_session_begins(root_in, look_at):
    look_at(root_in("resumed"))

    tab = open_page("overview", RUN)

    assert "3 sessions" in said(tab)
    assert "session 2" in [mark["text"] for mark in curve_charts(tab)[0]["marks"]]
    assert any("session" in table for table in tables(open_page("config_notes", RUN)))


def test_of_a_thousand_runs_a_hundred_are_shown_at_first(root_in, look_at):
    look_at(root_in("thousand"))

    tab = open_page("runs")

    assert "1,001 of 1,001 runs" in said(tab)
    assert len(run_table(tab)) == 100
    assert run_table(tab)["Run"][0] == RUN, "the newest sign of life comes first"

    asked, _ = tab.session_state["_runs_rows"]
    tab.session_state["_runs_rows"] = (asked, 2_000)
    tab.run()

    assert len(run_table(tab)) == 1_001


def test_a_replaced_log_is_read_again_and_reported(logs):
    folder = write_run(logs, RUN)
    tab = open_page("overview", RUN)
    (folder / METRICS_JSONL).write_bytes(b"")
    append(folder, [step_record(step, train_loss=0.25) for step in range(3)])

    tab.run()

    assert is_well(tab)
    assert any("The log file was replaced at" in info.value for info in tab.info)
    assert "3 records" in said(tab)


def test_a_log_that_grows_is_shown_as_it_grows(logs):
    folder = write_run(logs, RUN, status="running")
    tab = open_page("overview", RUN)
    append(folder, [step_record(step, train_loss=0.25) for step in range(100, 150)])

    tab.run()

    assert "151 records" in said(tab)


def test_records_that_the_run_lost_are_counted_on_every_page_of_it(logs):
    write_run(
        logs, RUN, extra=[{"event": "lost", "time": 1.7e9, "records": 12, "reason": "the disk was full"}]
    )

    tab = open_page("metrics", RUN)

    assert any(
        "lost 12 records" in warning.value and "disk was full" in warning.value for warning in tab.warning
    )
