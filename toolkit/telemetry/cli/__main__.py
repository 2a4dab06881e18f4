"""`python -m toolkit.telemetry.cli` is the command `telemetry`."""

from __future__ import annotations

from toolkit.telemetry.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
