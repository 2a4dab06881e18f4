"""Faults between Python and the system: the calls that telemetry makes, as far as they concern its files."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.faults.fault_rules import Rules


def inject_faults(folder: Path | str, switch: Path | str) -> None:
    """From now on, follow the rules of `switch` in calls of this process for files in `folder`."""
    rules, opened = Rules(switch), {}
    calls = {name: getattr(os, name) for name in ("write", "pwrite", "open", "fdatasync", "fsync", "replace")}

    def meet(op, path, since=0.0):
        return str(path).startswith(str(folder)) and rules.meet(op, str(path), since)

    def path_of(descriptor):
        return os.readlink(f"/proc/self/fd/{descriptor}")

    def write(descriptor, data, *where):
        if meet("write", path_of(descriptor), opened.get(descriptor, 0.0)):
            data = memoryview(data)[: max(1, len(data) // 2)]
        return calls["pwrite" if where else "write"](descriptor, data, *where)

    def open_(path, *how, **also):
        meet("open", path)
        descriptor = calls["open"](path, *how, **also)
        opened[descriptor] = time.monotonic()
        return descriptor

    def sync(descriptor):
        meet("fsync", path_of(descriptor))
        calls["fdatasync"](descriptor)

    def replace(old, new, **also):
        meet("rename", new)
        calls["replace"](old, new, **also)

    os.write = os.pwrite = write
    os.open, os.fdatasync, os.fsync, os.replace = open_, sync, sync, replace
