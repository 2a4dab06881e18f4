"""Identifies a process (pid, start, boot, machine) so that it can be checked later whether it is alive."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC
"""The number that Linux gives to the pid namespace of the machine itself."""


def host_name() -> str:
    """Return this machine's name."""
    # Without the module `socket`, where there is another way: every logger asks as it opens.
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "unknown")


def boot_id() -> str | None:
    """Return what names this boot of the machine, or None if the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return None


def pid_namespace() -> int | None:
    """Return the id of the pid namespace, as process numbers differ in a container; None if the system has none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def is_in_container() -> bool:
    """Return whether this process runs in a pid namespace of its own, as in a container."""
    return pid_namespace() not in (None, _INITIAL_PID_NAMESPACE)


def process_started(pid: int) -> int | None:
    """Return the start of process `pid` in clock ticks since boot, as numbers are reused; None if unknown."""
    fields = _fields_of(pid)
    return int(fields[19]) if len(fields) > 19 else None


def process_began(pid: int) -> float | None:
    """Return the wall time at which process `pid` began, or None if the system does not say.

    Its age by the clock that counts from the boot, taken from the time it is now. The kernel's own wall time of the
    boot is a whole second, so that a start worked out from it is up to a second too early.
    """
    ticks = process_started(pid)
    if ticks is None or not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - max(0.0, age)


def is_alive(pid: int, started: int | None) -> bool | None:
    """Return whether the process with this pid and start is alive on this machine; None if unknown."""
    if sys.platform == "win32" or pid <= 0:
        # Signal 0 ends a process on Windows instead of asking after it.
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        # Another user's, so it is there.
        pass
    fields = _fields_of(pid)
    if fields and fields[0] in _DEAD:
        return False
    if started is None or len(fields) <= 19:
        return True
    return int(fields[19]) == started


def is_stopped(pid: int) -> bool:
    """Return whether a process of this machine is stopped, by a signal or a debugger, and does not run."""
    return _fields_of(pid)[:1] in ([b"T"], [b"t"])


# A process that has ended still answers signals until its parent asks how it ended, which some never do.
_DEAD = (b"Z", b"X", b"x")


def _fields_of(pid: int) -> list[bytes]:
    """Return what the kernel says of a process, its state first; nothing if it does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    # The second field is the command in brackets and may itself hold brackets and spaces.
    return stat[stat.rfind(b")") + 2 :].split()
