"""Records the state of a Trainer's training at a save, and the one that a training begins with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length

from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.runfolder.records import StateMoment

Checkpoint = str | os.PathLike[str] | None


class TrainingStates:
    """The state records of one training; `checkpoint` is what it was resumed from."""

    def __init__(self, log: TelemetryLogger, trainer: Any, checkpoint: Checkpoint) -> None:
        self._log = log
        self._trainer = trainer
        self._checkpoint = checkpoint
        self.awaits_first = True
        """Whether the state that the training begins with is still to be recorded."""

    def put_first(self, args: Any, state: Any, parts: Mapping[str, Any]) -> None:
        """Record what was loaded, or that nothing was: when the generators are restored, or else at the first step."""
        if self.awaits_first:
            self.awaits_first = False
            self._put("start" if self._checkpoint is None else "load", self._checkpoint, args, state, parts)

    def put_saved(self, checkpoint: str, args: Any, state: Any, parts: Mapping[str, Any]) -> None:
        """Record what was just saved."""
        self._put("save", checkpoint, args, state, parts)

    def _put(
        self, at: StateMoment, path: Checkpoint, args: Any, state: Any, parts: Mapping[str, Any]
    ) -> None:
        if not self._log.is_live:
            return
        batches: Any = parts.get("train_dataloader")
        position = None
        # A loader of a stream has the method, and no length.
        if has_length(batches) and state.epoch is not None:
            # The Trainer skips what its own count of steps says, unless it is asked not to.
            skips = at == "save" or not args.ignore_data_skip
            position = round(state.epoch % 1.0 * len(batches)) if skips else 0
        self._log.state(
            at,
            state.global_step,
            checkpoint=path,
            model=parts.get("model"),
            optimizer=parts.get("optimizer"),
            scheduler=parts.get("lr_scheduler"),
            scaler=getattr(getattr(self._trainer, "accelerator", None), "scaler", None),
            epoch=state.epoch,
            data_position=position,
            world_size=args.world_size,
            batch_size=state.train_batch_size or args.train_batch_size,
            accumulation=args.gradient_accumulation_steps,
        )


def reached_checkpoint(args: Any, state: Any) -> str | None:
    """Return the checkpoint whose steps a training begins with; None if it begins with the first."""
    step = state.global_step
    return os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}") if step else None
