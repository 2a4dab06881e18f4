"""The child process that reads what only a library can read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from toolkit.telemetry.importers.limited_child import Limits, run_limited

ROOT = Path(__file__).resolve().parents[2]
LIMITED = """
import resource
from toolkit.telemetry.importers.limited_child import Limits
resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
Limits(10**9, 100.0, 10**9).apply()
print(resource.getrlimit(resource.RLIMIT_FSIZE))
"""


def test_a_lower_limit_of_the_user_stays():
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)

    assert done.stdout == "(1000000, 1000000)\n"


def test_the_child_finds_our_code_where_a_hook_finds_it(monkeypatch):
    """As in a checkout that is installed in place, whose folder is not in `sys.path`."""
    elsewhere = [place for place in sys.path if place and Path(place).resolve() != ROOT]
    monkeypatch.setattr(sys, "path", elsewhere)

    printed, is_whole = run_limited(
        "import toolkit.telemetry.importers.limited_child as ours; print(ours.__name__)",
        [],
        Limits(10**9, 10.0, 10**6),
    )

    assert is_whole
    assert printed.read() == b"toolkit.telemetry.importers.limited_child\n"
