"""What the ledger says in words, and what it advises."""

from __future__ import annotations

import pytest

from tests.dashboard.timed_runs import ledger
from toolkit.telemetry.reports.ledger_labels import LABELS, advice_on, has_content, label_of, percent
from toolkit.telemetry.timing.ledger import LedgerBuilder
from toolkit.telemetry.timing.names import ENTRIES


def test_every_entry_has_a_word():
    assert set(LABELS) == set(ENTRIES)
    assert label_of("of a later version") == "of a later version"


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


def test_what_is_little_is_said_quietly_or_not_at_all():
    assert not advice_on(ledger(training=0.9, data_wait=0.1)).much
    assert advice_on(ledger(training=0.96, data_wait=0.04)) is None
    assert advice_on(LedgerBuilder().ledger()) is None


def test_a_run_that_has_not_trained_yet_shows_no_ledger():
    assert not has_content(LedgerBuilder().ledger())
    assert not has_content(ledger(startup=1.0))
    assert has_content(ledger(startup=0.9, training=0.1))
    assert has_content(ledger(startup=0.9, stalled=0.1))


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
