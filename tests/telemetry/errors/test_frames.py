"""Where threads are is found out without a hang, in whichever version of Python."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.fork_server import run_python
from toolkit.telemetry.core.background import frames_of_threads

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "programs" / "collect_while_frames_are_read.py"


def test_a_collection_that_falls_due_meanwhile_does_not_hang_the_process():
    done = run_python(
        [PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert done.stdout == "no hang\n", done.stderr


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_left_as_it_was(is_on):
    before = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        frames_of_threads()
        assert gc.isenabled() == is_on
    finally:
        (gc.enable if before else gc.disable)()
