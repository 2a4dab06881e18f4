"""Every page in every state a log directory can be in: nothing breaks, and the state has a face."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from tests.dashboard.views.pages import EVERY_PAGE, OF_A_RUN, open_page
from tests.lengths import is_long
from tests.made_runs import append, step_record, write_run
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_JSONL
from toolkit.telemetry.runs.listing import run_listing

RUN = "the-run"


# ---------------------------------------------------------------- states


def _unreadable(root: Path) -> None:
    # The tests may run as root, whom no permission keeps out: folders in the place of the files do.
    folder = write_run(root, RUN)
    for name in (MANIFEST, METRICS_JSONL):
        (folder / name).unlink()
        (folder / name).mkdir()


def _bad_lines(root: Path) -> None:
    folder = write_run(root, RUN)
    _add(folder, b"not json\n\xff\xfe\xfd\n[1,2,3]\n")
    append(folder, [step_record(100, train_loss=0.5)])


def _cut(root: Path) -> None:
    log = write_run(root, RUN) / METRICS_JSONL
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:15]))


def _add(folder: Path, data: bytes) -> None:
    with (folder / METRICS_JSONL).open("ab") as file:
        file.write(data)


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


def _large(root: Path) -> None:
    curves = {"train_loss": lambda step: 9.0 if step == 12_345 else 1.0, "lr": lambda step: 1e-4}
    write_run(root, RUN, sessions=(range(20_000),), curves=curves)


def _thousand(root: Path) -> None:
    for number in range(1_000):
        write_run(root, f"run-{number:04d}", [], status="finished")
    write_run(root, RUN, status="running")


_OWN = {"reward/mean": float, "kl": lambda step: 0.1, "my loss": lambda step: 1}
_NO_NUMBERS = [step_record(step, train_loss=math.nan, lr=math.inf) for step in range(20)]
_RESUMED = (range(100), range(60, 160), range(150, 200))
STATES = {
    "no_runs": lambda root: root.mkdir(),
    # Nothing has been logged yet, so the folder itself is not there.
    "no_folder": lambda root: None,
    "no_records": lambda root: write_run(root, RUN, [], status="starting", summary={}),
    "unreadable": _unreadable,
    "no_manifest": lambda root: write_run(root, RUN, status=None),
    "manifest_of_nonsense": lambda root: (write_run(root, RUN) / MANIFEST).write_text("this is not JSON {"),
    "bad_lines": _bad_lines,
    "cut": _cut,
    "nothing_but_garbage": lambda root: _add(write_run(root, RUN, []), b"\x00\xff garbage\n" * 50),
    "one_point": lambda root: write_run(root, RUN, sessions=(range(1),)),
    "cpu_only": _cpu_only,
    "custom_only": lambda root: write_run(root, RUN, curves=_OWN),
    "nan_only": lambda root: write_run(root, RUN, _NO_NUMBERS),
    "large": _large,
    "resumed": lambda root: write_run(root, RUN, sessions=_RESUMED),
    "unfinished_line": lambda root: _add(
        write_run(root, RUN, status="running"), b'{"event":"step","global_step":100,"train_l'
    ),
    "no_record_file": lambda root: (write_run(root, RUN, status="running") / METRICS_JSONL).unlink(),
    "thousand": _thousand,
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
    assert str(root) in tab.said()
    starts = (
        "telemetry:\n  enabled: true",
        "from toolkit.telemetry import TelemetryLogger",
        "python run.py ",
    )
    for start in starts:
        (lines,) = [code.value for code in tab.code if code.value.startswith(start)]
        assert str(root) in lines, "what is pasted logs where this page looks"


def _waits_for_the_first_record(tab, root):
    assert "Starting" in tab.badges()
    assert "Waiting for the first record." in tab.said()


def _shows_the_path_and_why_it_cannot_be_read(tab, root):
    assert "Unreadable" in tab.badges()
    assert "This run cannot be read" in [heading.value for heading in tab.header]
    assert any(str(root / RUN) in code.value and MANIFEST in code.value for code in tab.code)


def _counts_the_bad_lines(tab, root):
    assert any("3 lines could not be read" in warning.value for warning in tab.warning)
    assert "The file itself is unchanged." in tab.said()


def _says_that_records_are_missing(tab, root):
    assert any("records are missing" in warning.value for warning in tab.warning)


def _lists_the_bad_lines(tab, root):
    found = tab.tables()
    assert any(list(table.columns) == ["byte", "length", "reason"] and len(table) == 3 for table in found)


def _lists_it_with_its_fault(tab, root):
    table = tab.run_table()
    assert list(table["Status"]) == ["✕ Unreadable"]
    assert MANIFEST in table["Problem"][0]


def _is_sent_no_values(tab, root):
    assert "20,002 records" in tab.said()
    assert len(json.dumps(tab.curve_charts()[0])) < 2_000


def _marks_each_session(tab, root):
    assert "3 sessions" in tab.said()
    assert "session 2" in [mark["text"] for mark in tab.curve_charts()[0]["marks"]]


def _has_a_nan_card(tab, root):
    assert tab.cards()["Train loss"] == "NaN"


def _says(*words, without=""):
    def says(tab, root):
        assert [word for word in words if word not in tab.said()] == []
        assert not without or without not in tab.said()

    return says


def _draws(number):
    def draws(tab, root):
        assert tab.charts() == number

    return draws


SHOWN = {
    "no_runs": [(EVERY_PAGE, _shows_the_lines_to_paste)],
    "no_folder": [(EVERY_PAGE, _shows_the_lines_to_paste), (["runs"], _says("does not exist yet"))],
    "no_records": [
        (["overview", "metrics", "machine", "alerts"], _waits_for_the_first_record),
        (["samples"], _says("log.log_sample(")),
    ],
    "unreadable": [
        (OF_A_RUN, _shows_the_path_and_why_it_cannot_be_read),
        (["runs"], _lists_it_with_its_fault),
    ],
    "manifest_of_nonsense": [(["overview"], _says("run.json is not JSON", "102 records", "Unreadable"))],
    "bad_lines": [
        (OF_A_RUN, _counts_the_bad_lines),
        (["overview"], _says("103 records")),
        (["config_notes"], _lists_the_bad_lines),
    ],
    "cut": [(OF_A_RUN, _says_that_records_are_missing)],
    "one_point": [(["overview", "metrics"], _draws(1))],
    "cpu_only": [
        (["overview"], _says("Process CPU")),
        (["machine"], _says("No GPU metrics: the run uses the CPU", "CPU :gray[%]")),
    ],
    "custom_only": [(["overview", "metrics"], _draws(3))],
    "nan_only": [
        (["alerts"], _says("train_loss is NaN or infinite from the first record on (20 records)")),
        (["overview"], _has_a_nan_card),
    ],
    "large": [(["overview"], _is_sent_no_values)],
    "resumed": [(["overview"], _marks_each_session)],
    "unfinished_line": [(["overview"], _says("101 records", without="could not be read"))],
    "no_record_file": [(["overview"], _says(f"{METRICS_JSONL}: No such file"))],
}
"""What pages show in a state, and which of them."""


@pytest.mark.parametrize("state", STATES)
def test_no_page_breaks_in_this_state_and_each_shows_it(state, root_in, look_at):
    root = root_in(state)
    look_at(root)
    tab = open_page("runs", RUN, runs=RUN)
    takes_long = state in ("large", "thousand") and not is_long()
    for page in ("overview", "metrics", "machine") if takes_long else EVERY_PAGE:
        assert tab.go_to(page).is_well(), page
        for pages, shows in SHOWN.get(state, ()):
            if page in pages:
                shows(tab, root)


# ---------------------------------------------------------------- other faces


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

    assert "Permission denied" in tab.said()
    assert any("chmod" in code.value for code in tab.code)
    assert sorted(open_page("runs").run_table()["Run"]) == ["other", RUN]


def test_of_a_thousand_runs_a_hundred_are_shown_at_first(root_in, look_at):
    look_at(root_in("thousand"))

    tab = open_page("runs")

    assert "1,001 of 1,001 runs" in tab.said()
    assert len(tab.run_table()) == 100
    assert tab.run_table()["Run"][0] == RUN, "the newest sign of life comes first"

    asked, _ = tab.session_state["_runs_rows"]
    tab.session_state["_runs_rows"] = (asked, 2_000)
    tab.run()

    assert len(tab.run_table()) == 1_001


def test_a_replaced_log_is_read_again_and_reported(logs):
    folder = write_run(logs, RUN)
    tab = open_page("overview", RUN)
    (folder / METRICS_JSONL).write_bytes(b"")
    append(folder, [step_record(step, train_loss=0.25) for step in range(3)])

    tab.run()

    assert any("The log file was replaced at" in info.value for info in tab.info)
    assert "3 records" in tab.said()
