"""The dashboard, plus one line in a file each time a page or a part of it is computed."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

TIMES_VARIABLE = "BENCH_TIMES"
"""Output file: wall and processor milliseconds of the computing thread."""


def main() -> int:
    """Serve with the arguments of run_dashboard.py, and record the computing times."""
    from streamlit.runtime.scriptrunner.script_runner import ScriptRunner

    from dashboard import launcher

    # Opened by its absolute path: the launcher changes the current folder.
    times = os.open(os.environ[TIMES_VARIABLE], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    # Streamlit has no public hook around a script run. From outside only its responses can be timed.
    runner: Any = ScriptRunner
    run_script = runner._run_script  # noqa: SLF001

    def timed(self: Any, rerun_data: Any) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            run_script(self, rerun_data)
        finally:
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            os.write(times, b"%.3f %.3f\n" % (wall * 1000, cpu * 1000))

    runner._run_script = timed  # noqa: SLF001
    return launcher.main(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
