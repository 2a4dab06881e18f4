"""The smallest Streamlit page, served with the dashboard's server and options."""

from __future__ import annotations

import tempfile
from pathlib import Path

_SCRIPT = 'import streamlit as st\n\nst.title("Nothing but a title")\n'


def main() -> None:
    """Serve it on a free port until a signal arrives."""
    from dashboard.listening import DEFAULT_HOST, listen
    from dashboard.server import DashboardServer

    listener = listen(DEFAULT_HOST, 0)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        script = Path(folder) / "empty.py"
        script.write_text(_SCRIPT, encoding="utf-8")
        DashboardServer(listener, script=script, warm_up=False).serve_until_stopped(
            on_ready=lambda: print(f"Empty page: {listener.url}", flush=True)
        )


if __name__ == "__main__":
    main()
