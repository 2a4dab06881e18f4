"""What the ledger says in words, and what it advises."""

from __future__ import annotations

import pytest

from tests.dashboard.timed_runs import ledger
from toolkit.telemetry.reports.ledger_labels import advice_on, percent


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("data_wait", "Try more loader workers"),
        ("validation", "Validate less often"),
        ("checkpoint", "Save less often"),
        ("sampling", "Sample less often"),
        ("startup", "Cache what it prepares"),
        ("control", "it was requested"),
        ("stalled", "under Alerts and under Time and machine"),
        ("redone", "Save checkpoints more often"),
        ("unaccounted", "log.span"),
    ],
)
def test_the_largest_share_besides_training_is_named_with_advice(entry, words):
    advice = advice_on(ledger(**{"training": 0.6, "validation": 0.06, entry: 0.3}))

    assert "is the largest cost besides training: 30 % of the time." in advice.text
    assert words in advice.text
    assert advice.much == (entry != "control")


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "0 %"),
        (0.00004, "< 0.1 %"),
        (0.012, "1.2 %"),
        (0.0994, "9.9 %"),
        (0.0996, "10 %"),
        (0.834, "83 %"),
        (0.9962, "99.6 %"),
        (0.99996, "99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_a_share_is_written_so_that_little_is_not_nothing_and_nearly_all_is_not_all(share, words):
    assert percent(share) == words
