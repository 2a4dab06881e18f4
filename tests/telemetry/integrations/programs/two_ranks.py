"""Trains by a framework on two ranks, and asks for a stop at step 3: torchrun two_ranks.py FRAMEWORK."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tests.telemetry.integrations.small_trainings import FRAMEWORKS
from tests.telemetry.integrations.test_every_framework import callback_of, log_of
from toolkit.telemetry.runfolder.control import write_request

name, rank = sys.argv[1], os.environ["RANK"]
callback = callback_of(name, Path())


def ask(step: int) -> None:
    """Ask once; every step takes long enough for the ranks to agree."""
    time.sleep(0.05)
    if step == 3 and rank == "0":
        write_request(log_of(name, callback).run_folder, actions=["save_and_stop"])


own = FRAMEWORKS[name].train(Path(), callback, steps=1000, at_step=ask)
# A file each: torchrun starts ranks with -u, and then two that print cut each other's lines.
said = {"steps": len(own.losses), "left": sorted(own.left), "failures": callback.guard.total}
Path(f"rank-{rank}.json").write_text(json.dumps(said))
