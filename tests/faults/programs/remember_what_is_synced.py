"""Logs, and remembers of each file what was synced, so that a test can imagine a power cut.

python remember_what_is_synced.py LOG_DIR STATE_FILE
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time

from tests.faults.child_program import TelemetryLogger

synced, calls = {}, {name: getattr(os, name) for name in ("fdatasync", "fsync", "replace")}


def remember(descriptor):
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if path.startswith(sys.argv[1]) and os.path.isfile(path):
        with open(path, "rb") as file:
            content = file.read()
        calls["fdatasync"](descriptor)
        synced[path] = content


def replace(old, new, **also):
    calls["replace"](old, new, **also)
    # What was synced before it got its name is safe under it; what was not may turn out empty.
    renamed[str(new)] = synced.pop(str(old), None)


renamed = {}
os.fdatasync = os.fsync = remember
os.replace = replace
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False, sync_interval=3600)
for step in range(1500):
    later = {f"metric_{step // 400}": 1.0}
    log.log_step(step, train_loss=1.0, twice=2 * step, **later)
    if step == 1000:
        assert log.sync()
        acknowledged = step + 1
    time.sleep(0.0005)
log.flush(60)
files = {}
for path in list(log.run_folder.iterdir()):
    try:
        files[str(path)] = path.read_bytes()
    except FileNotFoundError:
        pass  # it was about to be renamed into its place


def text(data):
    return None if data is None else base64.b64encode(data).decode()


with open(sys.argv[2], "w") as file:
    json.dump(
        {
            "acknowledged": acknowledged,
            "files": {os.path.basename(path): text(data) for path, data in files.items()},
            "synced": {os.path.basename(path): text(data) for path, data in synced.items()},
            "renamed": {os.path.basename(path): text(data) for path, data in renamed.items()},
        },
        file,
    )
os._exit(0)
