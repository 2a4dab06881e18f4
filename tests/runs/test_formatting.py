"""Numbers read as people write them; text from a run is shown, never obeyed."""

import math
import re
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import any_text, tries
from toolkit.telemetry.runs import formatting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (12.3456, "12.35"),
        (0.5, "0.5"),
        (999.97, "1,000"),
        (9999.7, "10,000"),
        (123456.7, "123,457"),
        (1.5e7, "1.5e7"),
        (0.000012345, "1.234e-5"),
        (-3, "-3"),
        (-0.0, "0"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (10**400, "> 1e308"),
        (None, formatting.NO_VALUE),
    ],
)
def test_a_number_has_four_digits(value, text):
    assert formatting.short_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.04e-4, "2.04e-4"),
        (1e-4, "1e-4"),
        (1e-5, "1e-5"),
        (0.0, "0"),
        (1.0, "1"),
        (0.05, "5e-2"),
        (math.nan, "NaN"),
    ],
)
def test_a_learning_rate_is_scientific(value, text):
    assert formatting.learning_rate(value) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (999_999, "1 MB"), (5e9, "5 GB"), (1.2e16, "12 PB")],
)
def test_a_gigabyte_is_a_thousand_million_bytes(n, text):
    assert formatting.size(n) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.32, "320 ms"),
        (0.99999, "1 s"),
        (48.7, "48 s"),
        (3600, "1 h"),
        (8040, "2 h 14 m"),
        (3 * 86400 + 7300, "3 d 2 h"),
        (3 * 86400 + 60, "3 d"),
        (-5, "-5 s"),
        (math.nan, "NaN"),
        (None, formatting.NO_VALUE),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert formatting.duration(seconds) == text


def test_a_clock_shows_local_time_and_the_date_when_it_is_another_day(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        shown = [
            formatting.clock(1.7e9),
            formatting.clock(1.7e9, now=1.7e9 + 60),
            formatting.clock(1.7e9, now=1.8e9),
        ]
    finally:
        monkeypatch.undo()
        time.tzset()

    assert shown == ["2023-11-15 03:43:20", "03:43:20", "2023-11-15 03:43:20"]


@given(x=st.floats() | st.integers() | st.integers(-(2**2000), 2**2000) | st.none())
@tries
def test_no_number_is_too_odd_to_be_shown(x):
    for say in (
        formatting.short_number,
        formatting.learning_rate,
        formatting.size,
        formatting.duration,
        formatting.ago,
        formatting.clock,
    ):
        assert say(x)


@given(text=any_text)
@tries
def test_clean_text_can_be_sent_to_a_browser(text):
    assert formatting.clean(text).encode().decode() == formatting.clean(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", formatting.clean(text))


tricky = st.lists(
    st.sampled_from(
        [
            *string.punctuation,
            ":smile:",
            "https://",
            "www.",
            "@",
            "->",
            "<->",
            "--",
            " ",
            "\n",
            "a",
            "1",
            "é",
            "#",
        ]
    ),
    max_size=20,
).map("".join)


@given(text=any_text | tricky)
@tries
def test_every_special_character_of_markdown_is_escaped(text):
    line = formatting.md(text)

    pairs = re.fullmatch(r"(?:\\(?P<mark>[!-/:-@\[-`{-~])|[^!-/:-@\[-`{-~])*", line)
    assert pairs is not None
    assert "\n" not in line
    assert line == line.strip()


@given(text=any_text | tricky)
@tries
def test_markdown_shows_the_text_itself(text):
    shown = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", formatting.md(text)).replace("\u2060", "")

    assert shown == " ".join(formatting.clean(text).split()).replace("\u2060", "")


@given(text=any_text | tricky)
@tries
def test_nothing_is_left_that_streamlit_finds_once_the_backslashes_are_gone(text):
    plain = re.sub(r"\\(.)", r"\1", formatting.md(text))

    # From the bundle of Streamlit 1.67: emoji and icons, links and mail addresses, arrows.
    assert not re.search(r":[\w+-]+:", plain)
    assert not re.search(r"(https?://|www(?=\.))([-.\w]+)", plain, re.IGNORECASE)
    assert not re.search(r"[-.\w+]+@[-\w]+(?:\.[-\w]+)+", plain)
    assert not re.search(r"(^|\s)(<->|->|<-|--|>=|<=|~=)(\s|$)", plain)


def test_a_long_text_is_cut_before_it_is_escaped():
    assert formatting.md("*" * 500, 4) == r"\*\*\*…"
    assert formatting.html_text("<" * 500, 4) == "&lt;&lt;&lt;…"
    assert formatting.md("*" * 4, 4) == r"\*\*\*\*"
