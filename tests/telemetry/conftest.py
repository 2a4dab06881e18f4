"""Real trainings of tiny models, many in one process: no time goes into threads and garbage that they do not need."""

from __future__ import annotations

import gc
import os
import sys

from tests.git_once import git_is_asked_once

__all__ = ["git_is_asked_once"]

# Several threads for a few numbers wait for each other, and for the tests of other workers.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    # Each training ends with a collection: what was imported is not looked through each time.
    gc.collect()
    gc.freeze()
