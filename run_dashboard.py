"""Start the dashboard on http://localhost:8501: `python run_dashboard.py --log-dir logs`."""

from __future__ import annotations

from dashboard.launcher import main

if __name__ == "__main__":
    raise SystemExit(main(prog="run_dashboard.py"))
