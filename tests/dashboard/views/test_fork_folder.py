"""A folder that ai-toolkit's telemetry fork wrote is shown like any other run."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("streamlit")

from tests.dashboard.views.pages import badges, is_well, open_page, run_table, said
from tests.golden.test_ai_toolkit_fork import SAMPLE


@pytest.fixture(autouse=True)
def _fork_folder(logs):
    shutil.copytree(SAMPLE, logs / "greyjacket")


def test_the_list_shows_how_far_it_got():
    row = run_table(open_page("runs")).set_index("Run").loc["greyjacket"]

    assert (row["Progress"], row["Loss (last)"]) == (1.0, "0.32")


def test_the_alerts_page_shows_what_was_wrong():
    tab = open_page("alerts", "greyjacket")

    assert is_well(tab)
    assert "Critical" in badges(tab)
    assert "train_loss is NaN or infinite from step 12 on" in said(tab)


@pytest.mark.parametrize("page", ["overview", "metrics", "machine", "config_notes"])
def test_the_other_pages_open(page):
    assert is_well(open_page(page, "greyjacket"))
