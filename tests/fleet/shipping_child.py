"""A shipper in a process of its own, with short pauses and odd batches, that may kill itself at the worst time.

`python -m tests.fleet.shipping_child ADDRESS LOGS SEED MARKER`: with a MARKER it kills itself between data and commit,
after a few batches, and says so by making that file.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from pathlib import Path

from toolkit.telemetry.core import outbox
from toolkit.telemetry.fleet import tail
from toolkit.telemetry.fleet.address import address_of
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.shipping import claims, sender, shipper


def main(address: str, logs: str, seed: str, marker: str = "") -> None:
    chance = random.Random(int(seed))
    sender.EVERY_S = 0.02
    sender.REPORT_S, claims.DEAD_S, claims.CHECK_S = 0.2, 1.0, 0.2
    outbox.FIRST_S, outbox.LONGEST_S = 0.05, 0.5
    tail.BATCH_ROWS = chance.randint(1, 40)
    left = chance.randint(0, 4)
    commit = sender.insert_commits

    def commit_or_die(*arguments):
        nonlocal left
        left -= 1
        if marker and left < 0:
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        commit(*arguments)

    sender.insert_commits = commit_or_die
    started = shipper.Shipper(Engine(address_of(address), patience_s=5.0), [Path(logs)])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    started.run(stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
