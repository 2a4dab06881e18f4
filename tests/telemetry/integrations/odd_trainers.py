"""Trainers and callbacks of transformers that do what a test needs."""

from __future__ import annotations

import math
import time

from transformers import Trainer, TrainerCallback


class AtHook(TrainerCallback):
    """Calls a function with the trainer and its state at one hook of a training."""

    def __init__(self, hook, function):
        self.trainer = None

        def call(args, state, control, **_):
            function(self.trainer, state, control)

        setattr(self, hook, call)


class NanAt(Trainer):
    """Has a loss that is no number at one step."""

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        return loss * math.nan if self.state.global_step == 2 else loss


class Talkative(Trainer):
    """Logs its own metrics during a step, and things that are not metrics."""

    def compute_loss(self, *args, **kwargs):
        if self.state.global_step == 1:
            self.log({"mine": 0.5, "note": "no number", "flag": True, "table": [1, 2]})
            self.log({"note": "nothing but words"})
        return super().compute_loss(*args, **kwargs)


class SlowElsewhere(Trainer):
    """Takes its time with what is not training."""

    SLOW_S = 0.2

    def compute_loss(self, model, *args, **kwargs):
        if not model.training:
            time.sleep(self.SLOW_S)
        return super().compute_loss(model, *args, **kwargs)

    def _save_checkpoint(self, *args, **kwargs):
        time.sleep(self.SLOW_S)
        return super()._save_checkpoint(*args, **kwargs)


class At(TrainerCallback):
    """Does something before a step."""

    def __init__(self, step, do):
        self.step = step
        self.do = do

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step - 1:
            self.do(kwargs["model"])
