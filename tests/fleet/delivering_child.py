"""A shipper in a process of its own that kills itself after it wrote control.json and before the engine knows.

`python -m tests.fleet.delivering_child ADDRESS LOGS MARKER`: it makes the file MARKER first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from toolkit.telemetry.fleet.address import address_of
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.shipping import courier, shipper


def main(address: str, logs: str, marker: str) -> None:
    deliver = courier.deliver

    def deliver_and_die(*arguments):
        deliver(*arguments)
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    courier.deliver = deliver_and_die
    started = shipper.Shipper(Engine(address_of(address)), [Path(logs)], delivers_requests=True)
    started.start()
    started.run(threading.Event())


if __name__ == "__main__":
    main(*sys.argv[1:])
