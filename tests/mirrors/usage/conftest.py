from __future__ import annotations

import pytest

from tests.mirrors.usage.posthog_server import KEY, KEY_ENV


@pytest.fixture(autouse=True)
def _tracking_is_allowed(monkeypatch):
    for name in (
        "DO_NOT_TRACK",
        "TELEMETRY_DO_NOT_TRACK",
        "AXOLOTL_DO_NOT_TRACK",
    ):
        monkeypatch.delenv(name, raising=False)
    # The loopback is asked directly, whatever the machine is set up for.
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv(KEY_ENV, KEY)
