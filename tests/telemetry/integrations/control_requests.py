"""Asking a run for something, and having it look at that before the next step."""

from __future__ import annotations

from toolkit.runfolder.control import write_request

_PATIENCE_S = 60.0


def ask(log, **request):
    """Ask a run for something, as somebody with an editor would, and have it look at that at once."""
    write_request(log.run_folder, **request)
    look_at_requests(log)


def look_at_requests(log):
    """Have the run look at its control file now."""
    # Its own thread looks every two seconds. Beside it, this look would find the request half taken, and a step
    # would pass before it is done, or both would take it; so that thread ends first, and is not needed any more.
    log._run.periodic.close(_PATIENCE_S)
    log._run._look_at_control()
