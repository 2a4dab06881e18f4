"""Whose files count: from which folders something is taken, and which are joined and written to.

In a log directory of several users each of them can make a folder, under any name and with any `run.json`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from toolkit.runfolder.portable import this_user
from toolkit.runfolder.script_interrupts import pass_on_interrupt


def is_ours(status: os.stat_result) -> bool:
    """Return whether a file belongs to the user this process acts for; always where files have no owners."""
    return this_user() in (None, status.st_uid)


def why_not_ours_alone(status: os.stat_result) -> str | None:
    """Return why another user may have written a file or folder, as the end of a sentence; None if no one else may."""
    if this_user() is None:
        return None
    if not is_ours(status):
        return f"belongs to another user (uid {status.st_uid})"
    # The mode of a symbolic link is meaningless.
    if not stat.S_ISLNK(status.st_mode) and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return (
            f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o}); "
            "chmod go-w makes it yours alone"
        )
    return None


def why_not_ours(log_dir: Path, path: Path, *, takes: bool = False) -> str | None:
    """Return why `path` in `log_dir` is another user's, who may have put anything there; None if it is not.

    The owner of the log directory could replace anything in it, so their folders are joined and written to. Nothing is
    taken from them if it `takes` what a script may then run.
    """
    user = this_user()
    if user is None:
        return None
    try:
        trusted = {user} if takes else {user, os.stat(log_dir).st_uid}
        # The folder itself, and the link where it is one.
        owners = {os.lstat(path).st_uid, os.stat(path).st_uid}
    except OSError as error:
        pass_on_interrupt(error)
        return None
    if owners <= trusted or owners <= {*trusted, _owner_of_what_we_make(log_dir)}:
        return None
    return f"{path.name} belongs to another user (uid {min(owners - trusted)})"


def _owner_of_what_we_make(log_dir: Path) -> int | None:
    """Return who owns a new folder in `log_dir`: a file server that does not trust root gives it to another user."""
    tried = log_dir / f".{os.urandom(8).hex()}"
    try:
        os.mkdir(tried, 0o700)
        try:
            return os.lstat(tried).st_uid
        finally:
            os.rmdir(tried)
    except OSError as error:
        pass_on_interrupt(error)
        return None
