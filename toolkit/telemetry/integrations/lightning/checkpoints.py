"""Records the checkpoints of one trainer once they are on disk, from what its public attributes name."""

from __future__ import annotations

import os
import time
from typing import Any

from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.lightning.trainer_values import put_state
from toolkit.telemetry.integrations.logger_setup import CLOCK_STEP_S, log_save_since


class SavedCheckpoints:
    """Pairs the calls of `on_save_checkpoint`, which has no path, with the files that appear after them."""

    def __init__(self, trainer: Any, run: FrameworkRun) -> None:
        self._trainer, self._run = trainer, run
        self.calls: list[tuple[float, int]] = []
        """When the hook was called, and at which step, for saves whose file was not found yet."""
        self._known: dict[str, float | None] = {}
        self._known |= {path: _time_of(path) for path in self._named()}

    def begin(self) -> None:
        """Note that a checkpoint is about to be saved."""
        self.calls.append((time.time(), self._trainer.global_step))

    def save(self) -> None:
        """Save a checkpoint now, in the folder of the trainer's own, and record it. Raises what the trainer raises."""
        self.record()
        trainer = self._trainer
        own = getattr(trainer.checkpoint_callback, "dirpath", None)
        folder = own or os.path.join(trainer.default_root_dir, "checkpoints")
        path = os.path.join(folder, f"asked-epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt")
        self._known[path] = None
        try:
            trainer.save_checkpoint(path)
        except BaseException:
            self.calls.clear()
            raise
        self.record()

    def record(self, *, is_over: bool = False) -> None:
        """Record the checkpoints that appeared since the last call; one still being written comes later.

        When the training is over, what remains was saved by the script itself, to a path unknown to us.
        """
        found = {path: _time_of(path) for path in self._named()}
        new = [(at, path) for path, at in found.items() if at is not None and self._known.get(path) != at]
        for at, path in sorted(new):
            self._known[path] = at
            self._record(
                path, at, max((one for one in self.calls if one[0] <= at + CLOCK_STEP_S), default=None)
            )
        if is_over:
            for _, step in self.calls:
                self._run.opened.log_checkpoint(step)

    def _record(self, path: str, at: float, call: tuple[float, int] | None) -> None:
        log, trainer = self._run.opened, self._trainer
        is_best = any(
            getattr(one, "monitor", None) is not None and getattr(one, "best_model_path", None) == path
            for one in trainer.checkpoint_callbacks
        )
        if call is None:
            # A checkpoint of weights alone calls no hook.
            log.log_checkpoint(trainer.global_step, path, is_best=is_best)
            return
        self.calls.remove(call)
        began, step = call
        log_save_since(log, step, path, (began, max(began, at)), "on_save_checkpoint", is_best=is_best)
        if step == trainer.global_step:
            put_state(log, trainer, "save", path)

    def _named(self) -> list[str]:
        """Return the files that the trainer's checkpoint callbacks name, and those named before."""
        paths = [*self._known]
        for one in self._trainer.checkpoint_callbacks:
            paths += [getattr(one, name, "") for name in ("best_model_path", "last_model_path")]
            paths += getattr(one, "best_k_models", ())
        return list(dict.fromkeys(str(path) for path in paths if path))


def _time_of(path: str) -> float | None:
    """Return when a file on a disk of this machine was written; a link to another checkpoint is left out."""
    try:
        return None if os.path.islink(path) else os.stat(path).st_mtime
    except OSError:
        return None
