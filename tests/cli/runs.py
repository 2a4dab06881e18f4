"""Runs for the tests of commands, and commands that another user runs."""

from __future__ import annotations

import os
from contextlib import redirect_stderr, redirect_stdout

from tests.made_runs import log_run as write_run
from tests.made_runs import write_table
from toolkit.telemetry.cli.main import main

__all__ = ["main_as", "write_run", "write_table"]


def main_as(user: int, *arguments: object) -> tuple[int, str]:
    """Return the exit code of a command that `user` runs, and what it says on stdout and stderr together."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 70
        try:
            os.setgid(user)
            os.setuid(user)
            with os.fdopen(writing, "w") as both, redirect_stdout(both), redirect_stderr(both):
                code = main([*map(str, arguments)])
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said
