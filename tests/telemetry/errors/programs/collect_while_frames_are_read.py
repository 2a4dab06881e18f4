"""Reads the frames of all threads while garbage is collected.

With `sys._current_frames` itself, Python 3.11.7 hangs within the first hundred rounds.
"""

from __future__ import annotations

import gc
import threading

from toolkit.telemetry.core.background import frames_of_threads


class Holder:
    pass


def make_garbage():
    holder = Holder()
    holder.itself, holder.local = holder, threading.local()
    holder.local.value = 1


def wait_deep_down(levels):
    if levels:
        wait_deep_down(levels - 1)
    while not stop.wait(0.0005):
        pass


stop = threading.Event()
for _ in range(20):
    threading.Thread(target=wait_deep_down, args=(20,), daemon=True).start()
gc.set_threshold(25)
for _ in range(3000):
    make_garbage()
    assert len(frames_of_threads()) == 21
stop.set()
print("no hang")
