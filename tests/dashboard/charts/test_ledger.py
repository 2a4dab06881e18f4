"""The parts of the bar make a whole, and what is small is in the table all the same."""

from __future__ import annotations

import re

from dashboard.charts.ledger import bar_html
from tests.dashboard.timed_runs import ledger
from toolkit.telemetry.timing.names import ENTRIES


def test_every_entry_has_a_look_of_its_own_in_both_themes():
    bar = bar_html("<left>", "right", ledger(**dict.fromkeys(ENTRIES, 0.1)).lines)
    looks = re.findall(r'background:([^"]*)"', bar)

    assert len(set(looks)) == len(ENTRIES)
    assert all("light-dark(#" in look for look in looks)
    assert "&lt;left&gt;" in bar
