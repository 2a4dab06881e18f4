"""These tests leave no journals in shared memory."""

from __future__ import annotations

import pytest

from tests.load.writers import journals_for


@pytest.fixture(autouse=True)
def _no_journals_left_behind(tmp_path):
    yield
    for path in journals_for(tmp_path):
        path.unlink(missing_ok=True)
