"""Tells the artifacts that this user's runs logged from those of a downloaded run, or of another user.

The description of an artifact has a seal: a keyed hash of its name, version and files. The key is in a file of the log
directory that only its owner can read, so whoever made a run elsewhere does not have it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolkit.runfolder.portable import this_user
from toolkit.runfolder.safefile import UnsafeFile, open_regular, replace_file, why_not_ours
from toolkit.telemetry.writing.sessions import alone_in

KEY: Final = ".artifact-key-"
"""Before the number of the user whose key it is."""
_KEY_BYTES: Final = 32
_AT_ONCE: Final = 1024 * 1024


def seal(log_dir: Path, name: str, folder: Path) -> dict[str, str]:
    """Return the digest of the files in `folder`, and the seal of them as the artifact `name`.

    Raises:
        OSError: a file cannot be read, or the key is another user's or cannot be made.
    """
    with alone_in(log_dir):
        if not os.path.lexists(_key_file(log_dir)):
            replace_file(_key_file(log_dir), os.urandom(_KEY_BYTES), durable=True)
    digest = _digest(log_dir, folder)
    return {"digest": digest, "seal": _seal(log_dir, name, folder, digest)}


def why_not_sealed(log_dir: Path, name: str, folder: Path, described: Mapping[str, Any]) -> str | None:
    """Return why the files in `folder` are not those that a run of this user in `log_dir` logged as `name`."""
    run_folder = folder.parents[2]
    digest, given = str(described.get("digest")), str(described.get("seal"))
    try:
        why = why_not_ours(log_dir, run_folder, takes=True)
        if why is not None:
            return why
        if not hmac.compare_digest(_seal(log_dir, name, folder, digest).encode(), given.encode()):
            raise FileNotFoundError
        # Only now: what has no seal may be a file without end.
        return None if _digest(log_dir, folder) == digest else "its files were changed since"
    except FileNotFoundError:
        return (
            f"it was not logged by a run of this user in {log_dir}; if you trust {run_folder.name}, "
            "load the file by its path, or log it again"
        )
    except (OSError, UnicodeEncodeError) as error:
        return str(error)


def _key_file(log_dir: Path) -> Path:
    return log_dir / f"{KEY}{this_user() or 0}"


def _seal(log_dir: Path, name: str, folder: Path, digest: str) -> str:
    with os.fdopen(_open(log_dir, _key_file(log_dir)), "rb") as file:
        key = file.read(_KEY_BYTES)
        if len(key) != _KEY_BYTES or (this_user() is not None and os.fstat(file.fileno()).st_mode & 0o077):
            raise UnsafeFile(
                f"{_key_file(log_dir).name} is damaged or can be read by others; delete it and log artifacts again"
            )
    return hmac.new(key, f"{name}\0{folder.name}\0{digest}".encode("utf-8", "replace"), "sha256").hexdigest()


def _digest(log_dir: Path, folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()):
        content = hashlib.sha256()
        with os.fdopen(_open(log_dir, path), "rb") as file:
            while part := file.read(_AT_ONCE):
                content.update(part)
        found.update(os.fsencode(path.relative_to(folder)) + b"\0" + content.digest())
    return found.hexdigest()


def _open(log_dir: Path, path: Path) -> int:
    why = why_not_ours(log_dir, path, takes=True)
    if why is not None:
        raise UnsafeFile(why)
    return open_regular(path, only_name=True)
