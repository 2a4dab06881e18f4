"""`python -m dashboard` in a checkout, and `python -m ai_toolkit_telemetry.dashboard`, are `telemetry-dashboard`."""

from __future__ import annotations

from .launcher import main

if __name__ == "__main__":
    raise SystemExit(main())
