"""Times the checkpoints of one trainer, and tells of them once they are there."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from toolkit.telemetry.integrations.lightning.shared_run import SharedRun


class Checkpoints:
    """Stands in for `trainer.save_checkpoint`; what that returns and raises stays its own.

    A checkpoint that is saved beside the training is told of when there is news: with the next one, or at the end.
    """

    def __init__(self, trainer: Any, run: SharedRun) -> None:
        self._trainer = trainer
        self._run = run
        # Somebody else may have put something there before.
        self._instead = vars(trainer).get("save_checkpoint")
        self._under_way: list[_Saved] = []

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Save a checkpoint as the trainer does, with a span around it."""
        run = self._run
        if not run.is_live:
            return self._save(filepath, *args, **kwargs)
        saved, began, part = (
            _Saved(self._trainer.global_step, filepath, time.time()),
            time.perf_counter(),
            None,
        )
        is_async = _saves_beside_the_training(self._trainer)
        with run.guard.catch("beginning a checkpoint of Lightning's"):
            self.tell_of_those_there()
            strategy = "async" if is_async else "sync"
            part = run.training.checkpoint_save(saved.step, path=filepath, strategy=strategy)
            part.__enter__()
        try:
            result = self._save(filepath, *args, **kwargs)
        except BaseException as error:
            with run.guard.catch("ending a checkpoint of Lightning's"):
                if part is not None:
                    part.__exit__(type(error), error, error.__traceback__)
            raise
        with run.guard.catch("ending a checkpoint of Lightning's"):
            saved.seconds = time.perf_counter() - began
            if part is not None:
                part.__exit__(None, None, None)
            if is_async:
                self._under_way.append(saved)
            else:
                self._tell(saved)
        return result

    def tell_of_those_there(self) -> None:
        """Tell of the checkpoints that have been saved beside the training by now."""
        there = [saved for saved in self._under_way if saved.is_there]
        self._under_way = [saved for saved in self._under_way if saved not in there]
        for saved in there:
            self._tell_of_safe(saved)

    def tell_of_all(self) -> None:
        """Tell of all the others: the trainer has waited for them, and has raised nothing.

        One of them may be gone already, because a better one took its place.
        """
        all_of_them, self._under_way = self._under_way, []
        for saved in all_of_them:
            self._tell_of_safe(saved)

    def _save(self, *args: Any, **kwargs: Any) -> Any:
        if self._instead is not None:
            return self._instead(*args, **kwargs)
        # Asked for by its class, so that a copy of the trainer saves itself.
        return type(self._trainer).save_checkpoint(self._trainer, *args, **kwargs)

    def _tell_of_safe(self, saved: _Saved) -> None:
        self._run.training.on_save_checkpoint_success(saved.step, path=saved.path)
        self._tell(saved)

    def _tell(self, saved: _Saved) -> None:
        path = saved.path
        is_best = any(
            getattr(one, "monitor", None) is not None and getattr(one, "best_model_path", None) == str(path)
            for one in self._trainer.checkpoint_callbacks
        )
        self._run.opened.log_checkpoint(saved.step, path, is_best=is_best, seconds=saved.seconds)


@dataclass(slots=True, eq=False)
class _Saved:
    """A checkpoint, as it was asked for; `seconds` is how long the training waited."""

    step: int
    path: Any
    since: float
    seconds: float = 0.0

    @property
    def is_there(self) -> bool:
        """Whether it is on a disk of this machine: an older file of its name does not count."""
        try:
            return os.stat(self.path).st_mtime >= self.since
        except OSError:
            return False


def path_of_asked(trainer: Any) -> str:
    """Return where a checkpoint goes that somebody asks for: beside the trainer's own."""
    own = getattr(trainer.checkpoint_callback, "dirpath", None)
    folder = own or os.path.join(trainer.default_root_dir, "checkpoints")
    return os.path.join(folder, f"asked-epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt")


def _saves_beside_the_training(trainer: Any) -> bool:
    plugin = getattr(trainer.strategy, "checkpoint_io", None)
    return any(kind.__name__ == "AsyncCheckpointIO" for kind in type(plugin).__mro__)
