"""These tests leave no journals in shared memory."""

from __future__ import annotations

import pytest

from tests.leftovers import remove_journals_of_runs_below


@pytest.fixture(autouse=True)
def _no_journals_left_behind(tmp_path):
    yield
    remove_journals_of_runs_below(tmp_path)
