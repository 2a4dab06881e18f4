"""A logger by a clock that the test moves, whose spans are all written one by one."""

from __future__ import annotations

import pytest

from tests.telemetry.logged import PATIENCE_S, describe_at_once, make_logger
from toolkit.telemetry.logger.training import checkpoints


@pytest.fixture(autouse=True)
def _a_machine_that_is_described_at_once(monkeypatch):
    describe_at_once(monkeypatch, {"host": "here", "os": "an os"})


@pytest.fixture(autouse=True)
def _time_to_look_at_checkpoints(monkeypatch):
    monkeypatch.setattr(checkpoints, "_LOOK_S", PATIENCE_S)


@pytest.fixture
def make(tmp_path, clock, close_at_end):
    def make(name="r", **options):
        return close_at_end(
            make_logger(tmp_path / "logs", name, **{"spans": "all", "clock": clock, **options})
        )

    return make


@pytest.fixture
def log(make):
    return make()
