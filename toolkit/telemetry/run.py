"""`python -m toolkit.telemetry.run train.py …` is `python -m ai_toolkit_telemetry.run train.py …`."""

from __future__ import annotations

import sys

from ai_toolkit_telemetry.run import main

if __name__ == "__main__":
    sys.exit(main())
