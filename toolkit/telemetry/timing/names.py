"""The standard span names, and the ledger entry of each."""

from __future__ import annotations

import re
from typing import Final

APPLICATION: Final = "application"
DIST_INIT: Final = "dist_init"
MODEL_INIT: Final = "model_init"
DATALOADER_INIT: Final = "dataloader_init"
OPTIMIZER_INIT: Final = "optimizer_init"
CHECKPOINT_LOAD: Final = "checkpoint_load"
TRAINING_LOOP: Final = "training_loop"
TRAINING_ITERATION: Final = "training_iteration"
DATA_LOADING: Final = "data_loading"
FORWARD: Final = "forward"
ZERO_GRAD: Final = "zero_grad"
BACKWARD: Final = "backward"
OPTIMIZER_UPDATE: Final = "optimizer_update"
CHECKPOINT_SAVE_SYNC: Final = "checkpoint_save_sync"
CHECKPOINT_SAVE_ASYNC: Final = "checkpoint_save_async"
CHECKPOINT_SAVE_FINALIZATION: Final = "checkpoint_save_finalization"
VALIDATION_LOOP: Final = "validation_loop"
VALIDATION_ITERATION: Final = "validation_iteration"
TESTING_LOOP: Final = "testing_loop"
TESTING_ITERATION: Final = "testing_iteration"
SAMPLING: Final = "sampling"
PAUSED: Final = "paused"

FOLDED: Final = frozenset(
    {
        TRAINING_ITERATION,
        VALIDATION_ITERATION,
        TESTING_ITERATION,
        DATA_LOADING,
        FORWARD,
        ZERO_GRAD,
        BACKWARD,
        OPTIMIZER_UPDATE,
    }
)
"""Short and frequent: summed into the step records, and kept one by one only where details are wanted."""

OF_A_STEP: Final = FOLDED - {VALIDATION_ITERATION, TESTING_ITERATION}
"""Spans within a training step, which begin before that step is logged."""

# The entries of the ledger.
IN_STARTUP: Final = "startup"
IN_TRAINING: Final = "training"
IN_DATA_WAIT: Final = "data_wait"
IN_VALIDATION: Final = "validation"
IN_CHECKPOINT: Final = "checkpoint"
IN_SAMPLING: Final = "sampling"
IN_CONTROL: Final = "control"
IN_OTHER: Final = "other_spans"
"""Spans of the user whose names are like none of the above."""
STALLED: Final = "stalled"
REWORK: Final = "redone"
"""Rework: steps after the one that a later session resumed from, lost to a crash and done twice."""
UNACCOUNTED: Final = "unaccounted"

ENTRIES: Final = (
    IN_TRAINING,
    IN_DATA_WAIT,
    IN_VALIDATION,
    IN_CHECKPOINT,
    IN_SAMPLING,
    IN_STARTUP,
    IN_CONTROL,
    IN_OTHER,
    STALLED,
    REWORK,
    UNACCOUNTED,
)
"""Every second of a run falls in one of these."""

ENTRY_OF: Final = {
    DIST_INIT: IN_STARTUP,
    MODEL_INIT: IN_STARTUP,
    DATALOADER_INIT: IN_STARTUP,
    OPTIMIZER_INIT: IN_STARTUP,
    CHECKPOINT_LOAD: IN_STARTUP,
    TRAINING_ITERATION: IN_TRAINING,
    DATA_LOADING: IN_DATA_WAIT,
    VALIDATION_LOOP: IN_VALIDATION,
    TESTING_LOOP: IN_VALIDATION,
    CHECKPOINT_SAVE_SYNC: IN_CHECKPOINT,
    CHECKPOINT_SAVE_ASYNC: IN_CHECKPOINT,
    CHECKPOINT_SAVE_FINALIZATION: IN_CHECKPOINT,
    SAMPLING: IN_SAMPLING,
    PAUSED: IN_CONTROL,
}
"""The entry for time directly within a span; any other span counts as the span around it."""

APART_FROM_TRAINING: Final = frozenset({VALIDATION_LOOP, TESTING_LOOP, SAMPLING})
"""Inside these, forward passes and waiting for data do not count as training."""

AT_TRAINING: Final = frozenset({IN_TRAINING, IN_DATA_WAIT})
"""Entries whose seconds are part of the step time; the others appear only in the ledger."""

LEDGER_PREFIX: Final = "ledger/"
"""Before an entry's name: its seconds since the last record with such fields."""
TIME_PREFIX: Final = "time/"
"""Before a span's name on a step record: seconds inside such spans since the last step record, by the host's clock."""
DEVICE_TIME_PREFIX: Final = "device_time/"
"""The same by the device's own clock."""
PROFILING_PREFIX: Final = "profiling/"
"""Before a profiled function's name on a step record: seconds a call took, the mean of those since the last record."""

HOST_CLOCK: Final = "host"
DEVICE_CLOCK: Final = "cuda"

ONE_LOGGER_NAMES: Final = {
    APPLICATION: "application",
    DIST_INIT: "distributed_code_initialization",
    MODEL_INIT: "model_initialization",
    DATALOADER_INIT: "data_loader_initialization",
    OPTIMIZER_INIT: "optimizer_initialization",
    CHECKPOINT_LOAD: "checkpoint_load",
    TRAINING_LOOP: "training_loop",
    TRAINING_ITERATION: "training_single_iteration",
    DATA_LOADING: "data_loading",
    FORWARD: "model_forward",
    ZERO_GRAD: "zero_grad",
    BACKWARD: "model_backward",
    OPTIMIZER_UPDATE: "optimizer_update",
    CHECKPOINT_SAVE_SYNC: "checkpoint_save_sync",
    CHECKPOINT_SAVE_ASYNC: "checkpoint_save_async",
    CHECKPOINT_SAVE_FINALIZATION: "checkpoint_save_finalization",
    VALIDATION_LOOP: "validation_loop",
    VALIDATION_ITERATION: "validation_single_iteration",
    TESTING_LOOP: "testing_loop",
    TESTING_ITERATION: "TESTING_SINGLE_ITERATION",
}
"""The exact names of the same spans in OneLogger."""

STANDARD: Final = frozenset({*ENTRY_OF, *ONE_LOGGER_NAMES})

_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_LONGEST_NAME: Final = 200
_SAVE: Final = frozenset({"checkpoint", "checkpoints", "checkpointing", "ckpt", "save", "saving"})
_LOAD: Final = frozenset(
    {"load", "loading", "loader", "restore", "resume", "fetch", "prefetch", "next", "wait"}
)
_VALIDATE: Final = frozenset(
    {"val", "valid", "validate", "validation", "eval", "evaluate", "evaluation", "test", "testing"}
)
_SAMPLE: Final = frozenset({"sampling", "generate", "generation"})
_DATA: Final = frozenset({"data", "dataset", "batch", "batches"})


def entry_like(name: str) -> str | None:
    """Return the entry that the name of a user's span clearly says, such as `save_model`; None if it says none."""
    words = {word.lower() for word in _WORD.findall(name[:_LONGEST_NAME])}
    if words & _SAVE:
        return IN_STARTUP if words & _LOAD else IN_CHECKPOINT
    if words & _VALIDATE:
        return IN_VALIDATION
    if words & _SAMPLE:
        return IN_SAMPLING
    if "dataloader" in words or (words & _DATA and words & _LOAD):
        return IN_DATA_WAIT
    return None


FROM_ONE_LOGGER: Final = {theirs: ours for ours, theirs in ONE_LOGGER_NAMES.items()}
