"""Records the state of a Lightning trainer: what it saves, what it loaded, or what it begins with."""

from __future__ import annotations

from typing import Any

from toolkit.telemetry.integrations.lightning.shared_run import SharedRun
from toolkit.telemetry.runfolder.records import StateTrigger


def put_state(run: SharedRun, trainer: Any, at: StateTrigger, checkpoint: Any) -> None:
    """Record the state of the training: what is saved or was loaded, or what it begins with."""
    done = trainer.fit_loop.epoch_loop.batch_progress
    epoch, position = trainer.current_epoch, done.current.processed
    if isinstance(trainer.num_training_batches, int) and trainer.num_training_batches > 0:
        # Lightning itself counts the end of an epoch as another one after a load than before.
        epoch, position = divmod(done.total.processed, trainer.num_training_batches)
    run.opened.state(
        at,
        trainer.global_step,
        checkpoint=checkpoint,
        model=trainer.lightning_module,
        optimizer=trainer.optimizers,
        scheduler=[config.scheduler for config in trainer.lr_scheduler_configs],
        scaler=getattr(trainer.precision_plugin, "scaler", None),
        epoch=epoch,
        data_position=position,
        world_size=trainer.world_size,
        batch_size=batch_size_of(trainer),
        accumulation=trainer.accumulate_grad_batches,
    )


def batch_size_of(trainer: Any) -> int | None:
    """Return the samples of a batch; None if unknown."""
    size = getattr(getattr(trainer, "train_dataloader", None), "batch_size", None)
    return size if isinstance(size, int) and not isinstance(size, bool) else None
