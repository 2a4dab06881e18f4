"""The parts of the bar make a whole, and what is small is in the table all the same."""

from __future__ import annotations

from dashboard.charts.ledger import bar_of, table_of
from dashboard.charts.palette import DARK, LIGHT
from tests.dashboard.timed_runs import ledger
from toolkit.telemetry.timing.names import ENTRIES


def test_what_is_too_narrow_has_no_number_in_it_and_what_is_hatched_has_none():
    training, wait, validation, lost = bar_of(
        ledger(training=0.6, data_wait=0.2, validation=0.05, redone=0.15).lines
    )

    assert (training["text"], wait["text"]) == ("60 %", "20 %")
    assert validation["text"] == lost["text"] == ""
    assert lost["hatched"]
    assert not training["hatched"]


def test_every_entry_has_a_look_of_its_own_in_both_themes():
    parts = bar_of(ledger(**dict.fromkeys(ENTRIES, 0.1)).lines)

    assert len({(part["color"], part["hatched"]) for part in parts}) == len(ENTRIES)
    for part in parts:
        name = part["color"][len("var(--") : -1].split("/")[0]
        assert name in LIGHT
        assert name in DARK


def test_the_table_has_every_entry_that_holds_time_and_their_sum():
    table = table_of(ledger(training=0.9996, validation=0.0004))

    assert table["head"] == ["", "time", "of total"]
    assert [row["cells"] for row in table["rows"]] == [
        ["training", "16 m 39 s", "99.9 %"],
        ["validation", "400 ms", "< 0.1 %"],
        ["total", "16 m 40 s", "100 %"],
    ]
