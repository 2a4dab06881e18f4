"""Files with secrets in them: read whole, and only where nobody else can."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from toolkit.runfolder.portable import this_user

_MOST_BYTES = 64 * 1024


class SecretFileError(ValueError):
    """The file cannot be taken; the message names the option, the file and what would help."""


def read_secret_file(path: Path, option: str) -> str:
    """Return the text of `path`, which `option` names.

    Raises:
        SecretFileError: it is not there, is no text, or others can read or write it.
    """
    try:
        with open(path, "rb") as file:
            # What was opened is asked, not the name: that may lead elsewhere a moment later.
            about = os.fstat(file.fileno())
            _check(about, path, option)
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SecretFileError(f"{option} {str(path)!r} cannot be read: {error.strerror}") from error
    if len(raw) > _MOST_BYTES:
        raise SecretFileError(f"{option} {str(path)!r} is larger than {_MOST_BYTES // 1024} KiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SecretFileError(f"{option} {str(path)!r} is no text in UTF-8") from error


def _check(about: os.stat_result, path: Path, option: str) -> None:
    # A pipe is what `--token-file <(pass show dashboard)` gives.
    if not (stat.S_ISREG(about.st_mode) or stat.S_ISFIFO(about.st_mode)):
        raise SecretFileError(f"{option} {str(path)!r} is no file")
    user = this_user()
    if user is None:
        return
    if about.st_uid not in (user, 0):
        raise SecretFileError(f"{option} {str(path)!r} belongs to another user")
    if about.st_mode & 0o077:
        raise SecretFileError(
            f"{option} {str(path)!r} can be read or written by others (mode {stat.S_IMODE(about.st_mode):04o}); "
            f"chmod 600 {str(path)!r} keeps it to you"
        )
