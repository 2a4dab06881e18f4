"""Output page: a window of what a run printed, searched, gone back in, and next to what was logged then."""

from __future__ import annotations

import pytest

from tests.dashboard.views.pages import open_page
from tests.made_runs import BEGAN, SECONDS_A_STEP, write_run
from toolkit.telemetry.runfolder.evidence.output_log import packed

HOSTILE = "<script>window.hacked = 1</script> **bold** \x1b[31m\u202e $x$"


def write_output(folder, texts):
    """Write a log with a line a step, on both streams in turn."""
    (folder / "output.log").write_bytes(b"".join(f"{text}\n".encode() for text in texts))
    rows = [
        packed(BEGAN + number * SECONDS_A_STEP, len(text.encode()) + 1, 1, number % 2)
        for number, text in enumerate(texts)
    ]
    (folder / "output.times").write_bytes(b"".join(rows))


def shown(tab):
    (data,) = tab.sent("lines")
    return data


def texts(tab):
    return [line["text"] for line in shown(tab)["lines"]]


@pytest.fixture
def folder(logs):
    return write_run(logs, "run", curves={"train_loss": lambda step: 1.0})


def test_the_newest_lines_are_shown_and_older_ones_on_request(folder):
    write_output(folder, [f"line {number}" for number in range(1_200)])
    tab = open_page("config_notes", run="run", tab="Output")
    assert texts(tab) == [f"line {number}" for number in range(700, 1_200)]
    assert shown(tab)["follows"]
    for first, last in ((200, 700), (0, 200)):
        next(button for button in tab.button if button.label == "Older").click().run()
        assert texts(tab) == [f"line {number}" for number in range(first, last)]
    assert not shown(tab)["follows"]
    assert not any(button.label == "Older" for button in tab.button)
    next(button for button in tab.button if button.label == "Newest").click().run()
    assert texts(tab)[-1] == "line 1199"


def test_lines_are_searched_and_streams_are_chosen(folder):
    write_output(folder, [f"line {number}" for number in range(100)])
    assert texts(open_page("config_notes", run="run", tab="Output", find="LINE 9")) == [
        "line 9",
        *(f"line {n}" for n in range(90, 100)),
    ]
    assert texts(open_page("config_notes", run="run", tab="Output", find="line 9", stream="stderr"))[:2] == [
        "line 9",
        "line 91",
    ]
    tab = open_page("config_notes", run="run", tab="Output", find="nowhere")
    assert "No line matches." in tab.said()


def test_another_page_leads_to_the_line_of_a_time_and_that_to_its_step(folder):
    write_output(folder, [f"line {number}" for number in range(100)])
    tab = open_page("config_notes", run="run", tab="Output", at=str(BEGAN + 40 * SECONDS_A_STEP))
    assert shown(tab)["chosen"] == 40
    assert "nearest record: step " in tab.said()
    assert open_page("config_notes", run="run", tab="Output", at="nan").is_well()


def test_text_is_only_text(folder):
    write_output(folder, [HOSTILE, "\ttab", ""])
    tab = open_page("config_notes", run="run", tab="Output")
    first, tabbed, _ = texts(tab)
    assert first.startswith("<script>window.hacked = 1</script> **bold** ")
    assert "\x1b" not in first
    assert "\u202e" not in first
    assert tabbed.strip() == "tab"


@pytest.mark.parametrize("contents", [None, b"", b"torn"])
def test_a_run_without_times_or_output_says_so(folder, contents):
    if contents is not None:
        (folder / "output.log").write_bytes(b"one\ntwo\n")
        (folder / "output.times").write_bytes(b"x" * 36 if contents else b"")
    tab = open_page("config_notes", run="run", tab="Output")
    if contents is None:
        assert "output: false" in tab.said()
    else:
        assert texts(tab) == ["one", "two"]
