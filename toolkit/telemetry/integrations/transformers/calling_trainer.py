"""Which trainer is calling a callback's hook: the Trainer hands everything but itself to its callbacks."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from types import FrameType
from typing import Any

from transformers import Trainer, TrainerCallback


def calling_trainer(callback: TrainerCallback) -> tuple[Any, str | os.PathLike[str] | None]:
    """Return the trainer that is calling a hook of `callback`, and the checkpoint that it goes on from.

    Both stand in the frames above; None where they do not.
    """
    checkpoint = None
    for frame in _frames_above():
        if checkpoint is None and "resume_from_checkpoint" in frame.f_code.co_varnames:
            checkpoint = frame.f_locals.get("resume_from_checkpoint")
        found = _self_in(frame)
        if isinstance(found, Trainer) and callback in found.callback_handler.callbacks:
            return found, checkpoint if isinstance(checkpoint, (str, os.PathLike)) else None
    return None, None


def is_being_called(trainer: Any) -> bool:
    """Return whether a method of `trainer` is under way further up."""
    return trainer is not None and any(_self_in(frame) is trainer for frame in _frames_above())


def _frames_above() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _self_in(frame: FrameType) -> Any:
    # Asking a frame for its variables makes a copy of them, which holds on to them: only where it must be.
    return frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
