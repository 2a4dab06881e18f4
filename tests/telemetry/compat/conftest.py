"""A run of the W&B door, in a folder of the test's own."""

from __future__ import annotations

import os

import pytest

import toolkit.telemetry.compat.wandb as wandb
from tests.telemetry.logged import QUIET
from toolkit.telemetry.compat import null_object


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Begin runs in a folder of the test's own, and end what it left open."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(null_object, "_warned", set())

    def init(**given):
        return wandb.init(**{"dir": tmp_path, "name": "r", "telemetry": QUIET, **given})

    yield init
    wandb.finish()
