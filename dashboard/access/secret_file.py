"""Reads files with secrets, and refuses them if other users can read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from toolkit.telemetry.runfolder.portable import this_user

_MAX_BYTES = 64 * 1024


class SecretFileError(ValueError):
    """The file is refused; the message names the option, the file and the fix."""


def read_secret_file(path: Path, option: str) -> str:
    """Return the text of `path`, given by `option`. Raises SecretFileError if it is no text or not private."""
    try:
        with open(path, "rb") as file:
            # Check the open file, not the path: that may point elsewhere right after.
            about = os.fstat(file.fileno())
            _check(about, path, option)
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SecretFileError(f"{option} {str(path)!r} cannot be read: {error.strerror}") from error
    if len(raw) > _MAX_BYTES:
        raise SecretFileError(f"{option} {str(path)!r} is larger than {_MAX_BYTES // 1024} KiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SecretFileError(f"{option} {str(path)!r} is not UTF-8 text") from error


def _check(about: os.stat_result, path: Path, option: str) -> None:
    # A pipe is what `--token-file <(pass show dashboard)` gives.
    if not (stat.S_ISREG(about.st_mode) or stat.S_ISFIFO(about.st_mode)):
        raise SecretFileError(f"{option} {str(path)!r} is not a file")
    user = this_user()
    if user is None:
        return
    if about.st_uid not in (user, 0):
        raise SecretFileError(f"{option} {str(path)!r} belongs to another user")
    if about.st_mode & 0o077:
        raise SecretFileError(
            f"{option} {str(path)!r} can be read or written by others (mode {stat.S_IMODE(about.st_mode):04o}); "
            f"run: chmod 600 {str(path)!r}"
        )
