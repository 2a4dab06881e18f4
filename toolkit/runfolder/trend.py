"""The rough shape of a run's loss, from a few kilobytes of its records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from toolkit.runfolder.portable import pread
from toolkit.runfolder.reader import BadLine, parse_line
from toolkit.runfolder.records import STEP
from toolkit.runfolder.safefile import open_regular
from toolkit.runfolder.untrusted import number_in

_SAMPLE_BYTES: Final = 8 * 1024
_STEP_LINES: Final = (b'{"event":"step"', b'{"event": "step"')
"""How a step record starts: ours, and one written by Python's json module."""
_LOSSES: Final = ("train_loss_mean", "train_loss", "loss")


def trend_of(log: Path, points: int) -> list[float]:
    """Return losses at about `points` positions of `log`, for a rough shape, reading a few kilobytes at each."""
    descriptor = open_regular(log)
    try:
        size = os.fstat(descriptor).st_size
        blocks = (
            [pread(descriptor, size, 0)]
            if size <= points * _SAMPLE_BYTES
            else [
                pread(descriptor, _SAMPLE_BYTES, place * (size - _SAMPLE_BYTES) // max(1, points - 1))
                for place in range(points)
            ]
        )
    finally:
        os.close(descriptor)
    if len(blocks) == 1:
        losses = [loss for line in blocks[0].split(b"\n") if (loss := _loss_on(line)) is not None]
        return (
            losses
            if len(losses) <= points
            else [losses[i * (len(losses) - 1) // max(1, points - 1)] for i in range(points)]
        )
    found = (
        next((loss for line in block.split(b"\n")[1:-1] if (loss := _loss_on(line)) is not None), None)
        for block in blocks
    )
    return [loss for loss in found if loss is not None]


def _loss_on(line: bytes) -> float | None:
    if not line.startswith(_STEP_LINES):
        return None
    record = parse_line(0, line)
    if isinstance(record, BadLine) or record.get("event") != STEP:
        return None
    return next((number for name in _LOSSES if (number := number_in(record.get(name))) is not None), None)
