"""Starts the dashboard with another script than its own: python serve_curves.py SCRIPT [options of the dashboard]."""

import sys
from pathlib import Path

from dashboard import launcher
from dashboard.server import DashboardServer

DashboardServer.__init__.__kwdefaults__["script"] = Path(sys.argv[1])

if __name__ == "__main__":
    sys.exit(launcher.main(sys.argv[2:]))
