"""Numbers for Plotly: wall time there and back."""

from __future__ import annotations

import numpy as np
import pytest

from dashboard.charts.packing import window_from_chart, x_values


def test_wall_time_goes_to_the_browser_and_back():
    window = (1_700_000_000.0, 1_700_003_600.0)

    for axis in ("time", "step", "elapsed", "epoch"):
        there = x_values(np.array(window), axis)
        assert window_from_chart(there[::-1].tolist(), axis) == pytest.approx(window)
