"""Ends while a thread of ours asks a store that does not answer.

python end_while_the_store_is_silent.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from torch.distributed import TCPStore

from toolkit.telemetry.core.ranks import asking_in_background

serve = (
    "import time; from torch.distributed import TCPStore\n"
    "store = TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False)\n"
    "print(store.port, flush=True)\n"
    "time.sleep(600)"
)
server = subprocess.Popen([sys.executable, "-c", serve], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
store = TCPStore("127.0.0.1", int(server.stdout.readline()), None, False)
os.kill(server.pid, signal.SIGSTOP)
begun = threading.Event()


def ask():
    with asking_in_background():
        begun.set()
        store.check(["nothing"])


class Slow:
    # The interpreter takes its time over the end, as it does with many modules.
    def __del__(self, sleep=time.sleep):
        sleep(4)


slow = Slow()
threading.Thread(target=ask, daemon=True).start()
begun.wait()
wake = f"sleep 2; kill -CONT {server.pid}; sleep 10; kill {server.pid}"
subprocess.Popen(["sh", "-c", wake], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
sys.exit(7)
