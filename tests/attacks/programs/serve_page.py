"""A dashboard whose only page is the script that its argument names."""

import pathlib
import sys

from dashboard.listening import listen
from dashboard.server import DashboardServer

listener = listen("localhost", 0)
server = DashboardServer(listener, script=pathlib.Path(sys.argv[1]), warm_up=False)
server.serve_until_stopped(on_ready=lambda: print(f"Dashboard: {listener.url} ", flush=True))
