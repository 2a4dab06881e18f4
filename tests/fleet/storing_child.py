"""A shipper with files in a process of its own, that kills itself while it stores them.

`python -m tests.fleet.storing_child ADDRESS LOGS PLACE SEED`; with the seed -1 it does all there is to do.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

from toolkit.telemetry.fleet.address import address_of
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.objects import ObjectShipper
from toolkit.telemetry.fleet.shipping.shipper import Shipper
from toolkit.telemetry.fleet.stores import S3Store, store_at


def main(address: str, logs: str, place: str, seed: str) -> int:
    chance = random.Random(int(seed))
    left = chance.randint(1, 12) if seed != "-1" else 10**9

    def deadly(function):
        def call(*arguments):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            done = function(*arguments)
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return call

    S3Store.write = deadly(S3Store.write)
    where = address_of(address)
    shipper = Shipper(Engine(where), [Path(logs)], objects=ObjectShipper(store_at(place)))
    shipper.start()
    shipper.ship_all()
    return 1 if shipper.objects.totals.waiting else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
