"""The kinds of record a run writes, and the names of their fields."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final, Literal

FORMAT: Final = 1
"""The number of the format described here; a change to files on disk raises it, and old folders keep opening."""

Record = dict[str, Any]
"""One decoded line of a record file."""

START: Final = "start"
ENVIRONMENT: Final = "environment"
"""What the start record could not wait for: packages, machine, command line."""
STEP: Final = "step"
SYSTEM: Final = "system"
EPOCH: Final = "epoch"
EVAL: Final = "eval"
CHECKPOINT: Final = "checkpoint"
SAMPLE: Final = "sample"
CODE: Final = "code"
"""The code of the session was kept: `path`, `commit`, `dirty`, `files`, `bytes`, `left_out`."""
TABLE: Final = "table"
"""A table in a file of its own: `name`, `path`, `columns`, `rows`."""
HISTOGRAM: Final = "histogram"
"""How values are spread: `name`, `values` (how many in each bin), `bins` (their edges), `not_finite`."""
SUMMARY: Final = "summary"
"""Values that sum up the run, by name; the newest one counts."""
MEDIA_DROPPED: Final = "media_dropped"
"""An image, table or histogram that was not kept because too many waited: `kind`, `name`."""
BATCHES_DROPPED: Final = "batches_dropped"
"""Batches that are not in the file of batches, or from here on without their ids: `count` or `from_step`, `reason`."""
SPAN: Final = "span"
"""A part of the work that is over: `id`, `parent_id`, `name`, `start`, `duration`, `clock`, `attributes`."""
SPAN_START: Final = "span_start"
"""An open span, recorded so that it is known if the process is killed before it ends."""
SPAN_EVENT: Final = "span_event"
"""Something that happened inside a span: `span_id`, `span`, `name`, `attributes`."""
SPAN_SUMMARY: Final = "span_summary"
"""Of every span name of this session so far: how many, how long together, and how long usually."""
LEDGER: Final = "ledger"
"""Seconds since the last record that carries such fields, by what they were spent on."""
COMPLETION: Final = "completion"
"""What a model answered: `prompt`, `completion` or `chosen` and `rejected`, and the numbers that belong to it."""
COMPLETIONS_DROPPED: Final = "completions_dropped"
"""More completions came in some steps than are kept: `from_step`, `to_step`, `written`, `dropped`."""
MESSAGE: Final = "message"
"""The outcome of a message: `receiver`, `service`, `occasion`, `status`, `attempts`, `seconds`, `reason`."""
TAGS: Final = "tags"
"""What the session is comparable with and part of from here on: `perf_tag`, `session_tag`."""
STATE: Final = "state"
"""What a checkpoint holds of a training, in numbers: `at`, `checkpoint`, `optimizer_step`, `weights_norm`, …"""
StateTrigger = Literal["save", "load", "start"]
"""Values of `at`: a checkpoint was saved, one was loaded, or a session that loaded none makes its first step."""
CONTROL_CHANGE: Final = "control_change"
FINDING: Final = "finding"
ERROR: Final = "error"
LOST: Final = "lost"
END: Final = "end"

OF_THE_LOGGER: Final = frozenset(
    {
        *(START, STEP, SPAN, SPAN_START, SPAN_EVENT, SPAN_SUMMARY, LEDGER, MESSAGE, TAGS),
        *(
            CONTROL_CHANGE,
            FINDING,
            LOST,
            END,
            MEDIA_DROPPED,
            COMPLETIONS_DROPPED,
            STATE,
            BATCHES_DROPPED,
            CODE,
        ),
    }
)
"""Kinds that readers rely on, and that a script writes with calls of their own or not at all."""

ENVELOPE: Final = ("event", "time", "elapsed", "seq", "session", "rank")
"""What the logger itself puts on every record; a caller's field of such a name is kept under `x_<name>`."""

NON_FINITE: Final = "non_finite"
"""Field that maps a metric's name to "NaN", "Infinity" or "-Infinity", where the metric itself is null."""

NAN_INF_DETECTED: Final = "nan_inf_detected"
LOSS_JUMP: Final = "loss_jump"
"""Marks a step record that was written out of turn because its loss was far above the ones before it."""

SPREAD: Final = ("_min", "_max", "_mean")
"""After a metric's name on a step record: how far it varied since the record before, where it did."""

UNENCODABLE: Final = "unencodable"
"""Field that maps a name to a short note of what its value was, where the value could not be kept."""

CUT: Final = "cut"
"""Field that lists the names whose over-long text or list was shortened."""

RESERVED: Final = frozenset({*ENVELOPE, NON_FINITE, UNENCODABLE, CUT})
"""Names that have a meaning of ours on every record; a caller's field of such a name is kept as `x_<name>`."""

MAX_RECORD_BYTES: Final = 64 * 1024
MAX_LINE_BYTES: Final = 1024 * 1024
"""A reader passes over a longer line: nothing of ours is longer than a record, so it is not ours."""


def is_spread(name: str, names: Container[str]) -> bool:
    """Return whether the field `name` holds the variation of another field in `names`."""
    metric, _, _ = name.rpartition("_")
    return (
        name.endswith(SPREAD) and metric in names and all(f"{metric}{ending}" in names for ending in SPREAD)
    )


OF_THE_JOB: Final = {
    "job_id": ("SLURM_JOB_ID", "TELEMETRY_JOB_ID"),
    "job_array_id": ("SLURM_ARRAY_JOB_ID",),
    "job_array_task": ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX"),
    "job_restarts": ("SLURM_RESTART_COUNT",),
    "job_start_time": ("SLURM_JOB_START_TIME",),
    "job_end_time": ("SLURM_JOB_END_TIME", "TELEMETRY_JOB_END_TIME"),
}
"""Fields of a start record that a scheduler's variables give: Slurm's, those of a Kubernetes Job, or our own."""

WELL_KNOWN_PACKAGES: Final = (
    *("torch", "numpy", "transformers", "diffusers", "peft", "accelerate", "trl", "datasets", "bitsandbytes"),
    *("safetensors", "lightning", "xformers", "triton", "deepspeed", "optimum-quanto", "torchao"),
    *("wandb", "tensorboard", "ai-toolkit-telemetry"),
)
"""The packages whose versions change what a training run does."""


def well_known(packages: object) -> dict[str, Any]:
    """Return those of the `packages` of a start record, which has all, that are shown where there is little room."""
    found = packages if isinstance(packages, dict) else {}
    return {name: found[name] for name in WELL_KNOWN_PACKAGES if name in found}


FIRST_STEP: Final = "first_step"
"""Field of a start record, and of a manifest's summary: the number of the run's first step, where it is known."""


def shows_count_from_zero(record: Record) -> bool:
    """Return whether a record shows that its run counts from 0: a loop that counts from 1 never logs a step 0."""
    event = record.get("event")
    return (event == STEP and _is_zero(record.get("global_step"))) or (
        event == START and _is_zero(record.get(FIRST_STEP))
    )


def steps_done(step: int, *, from_zero: bool) -> int:
    """Return how many steps are done when `step` is."""
    return step + 1 if from_zero else step


def _is_zero(value: object) -> bool:
    return type(value) is int and value == 0
