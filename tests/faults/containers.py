"""Process, mount and shared-memory worlds as a container has them, made with unshare."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def container(*, own_shared_memory: bool = False, bind: tuple[Path, Path] | None = None) -> list[str]:
    """Return what starts a program in a container that has the host's name and process numbers of its own.

    Whoever kills the process that this starts kills the whole container. `bind` shows one folder at the place of
    another. Skips the test where no container can be made.
    """
    steps = ["mount --make-rprivate /"]
    if own_shared_memory:
        steps.append("mount -t tmpfs tmpfs /dev/shm")
    if bind is not None:
        steps.append(f"mount --bind '{bind[0]}' '{bind[1]}'")
    command = [
        *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
        *("sh", "-c", " && ".join([*steps, 'exec "$@"']), "sh"),
    ]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no container can be made here: {tried.stderr.strip()}")
    return command
