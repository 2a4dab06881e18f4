"""Where threads are is found out without a hang, in whichever version of Python."""

from __future__ import annotations

from pathlib import Path

from tests.fork_server import ROOT, run_python

PROGRAM = Path(__file__).parent / "programs" / "collect_while_frames_are_read.py"


def test_a_collection_that_falls_due_meanwhile_does_not_hang_the_process():
    done = run_python([PROGRAM], cwd=ROOT, capture_output=True, text=True)

    assert done.stdout == "no hang\n", done.stderr
