"""The child process that reads what only a library can read."""

from __future__ import annotations

import subprocess
import sys

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
