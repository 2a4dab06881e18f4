"""Start the dashboard on http://localhost:8501: `python run_dashboard.py --log-dir logs`."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # A shell starts a program with `&`, as `make run` does, so that it ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dashboard.launcher import main

    raise SystemExit(main(prog="run_dashboard.py"))
