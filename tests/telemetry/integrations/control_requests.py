"""Sends a control request to a run, and makes the run read it before the next step."""

from __future__ import annotations

from toolkit.telemetry.runfolder.control import write_request

_PATIENCE_S = 60.0


def ask(log, **request):
    """Write a request into the control file, as with an editor, and make the run read it at once."""
    write_request(log.run_folder, **request)
    look_at_requests(log)


def look_at_requests(log):
    """Make the run read its control file now."""
    # Its own thread reads every two seconds. In parallel, both could take the request, or a step could pass before it
    # is carried out; so that thread is stopped first.
    log._run.periodic.close(_PATIENCE_S)
    log._run._look_at_control()
