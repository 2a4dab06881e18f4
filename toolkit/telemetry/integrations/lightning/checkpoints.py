"""Times the checkpoints of one trainer, and records them once they are saved."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkit.telemetry.integrations.lightning.shared_run import SharedRun
from toolkit.telemetry.integrations.lightning.training_state import put_state
from toolkit.telemetry.integrations.open_phases import GuardedPhase
from toolkit.telemetry.runfolder.script_interrupts import pass_on_interrupt


class CheckpointTimer:
    """Wraps `trainer.save_checkpoint`; one saved in the background is recorded with the next, or at the end."""

    def __init__(self, trainer: Any, run: SharedRun) -> None:
        self._trainer = trainer
        self._run = run
        self._pending: list[_Saved] = []

    def wrap(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Return `save` with a span around it, and a record after it."""

        def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            run = self._run
            if not run.is_live:
                return save(filepath, *args, **kwargs)
            saved = _Saved(self._trainer.global_step, filepath, time.time())
            began, strategy = time.perf_counter(), "async" if _saves_in_background(self._trainer) else "sync"
            with run.guard.catch("recording earlier checkpoints of Lightning's"):
                self.record_arrived()
            with GuardedPhase(
                run.guard, lambda: run.training.checkpoint_save(saved.step, path=filepath, strategy=strategy)
            ):
                result = save(filepath, *args, **kwargs)
            with run.guard.catch("recording a checkpoint of Lightning's"):
                saved.seconds = time.perf_counter() - began
                if strategy == "async":
                    self._pending.append(saved)
                else:
                    self._record(saved)
                put_state(run, self._trainer, "save", filepath)
            return result

        return save_checkpoint

    def record_arrived(self) -> None:
        """Record the background checkpoints that are on disk by now."""
        arrived = [saved for saved in self._pending if saved.is_on_disk]
        self._pending = [saved for saved in self._pending if saved not in arrived]
        for saved in arrived:
            self._record_success(saved)

    def record_all(self) -> None:
        """Record all others, which the trainer has waited for; one may have been deleted already for a better one."""
        pending, self._pending = self._pending, []
        for saved in pending:
            self._record_success(saved)

    def _record_success(self, saved: _Saved) -> None:
        self._run.training.on_save_checkpoint_success(saved.step, path=saved.path)
        self._record(saved)

    def _record(self, saved: _Saved) -> None:
        path = saved.path
        is_best = any(
            getattr(one, "monitor", None) is not None and getattr(one, "best_model_path", None) == str(path)
            for one in self._trainer.checkpoint_callbacks
        )
        self._run.opened.log_checkpoint(saved.step, path, is_best=is_best, seconds=saved.seconds)


@dataclass(slots=True, eq=False)
class _Saved:
    """A checkpoint; `seconds` is how long the training waited for it."""

    step: int
    path: Any
    since: float
    seconds: float = 0.0

    @property
    def is_on_disk(self) -> bool:
        """Whether it is on a disk of this machine; an older file of the same name does not count."""
        try:
            return os.stat(self.path).st_mtime >= self.since
        except OSError as error:
            pass_on_interrupt(error)
            return False


def requested_checkpoint_path(trainer: Any) -> str:
    """Return the path of a checkpoint that was requested: beside the trainer's own."""
    own = getattr(trainer.checkpoint_callback, "dirpath", None)
    folder = own or os.path.join(trainer.default_root_dir, "checkpoints")
    return os.path.join(folder, f"asked-epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt")


def _saves_in_background(trainer: Any) -> bool:
    plugin = getattr(trainer.strategy, "checkpoint_io", None)
    return any(kind.__name__ == "AsyncCheckpointIO" for kind in type(plugin).__mro__)
