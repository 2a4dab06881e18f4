"""Attributes of a training job's spans and events: OneLogger's classes, field by field, and additions of ours.

A field that is None is unknown and left out of the record. Fields that begin with `window_` are ours: they cover the
iterations since the last such event, while OneLogger's own fields are totals for the job.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

# Events.
INITIALIZATION: Final = "one_logger_initialization"
CONFIG_UPDATE: Final = "update_training_telemetry_config"
TRAINING_METRICS: Final = "training_metrics_update"
VALIDATION_METRICS: Final = "validation_metrics_update"
TESTING_METRICS: Final = "testing_metrics_update"
CHECKPOINT_SUCCESS: Final = "save_checkpoint_success"
CHECKPOINT_METRICS: Final = "sync_checkpoint_metrics_update"
ERROR: Final = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """Attributes of a span or an event."""

    def known(self) -> dict[str, Any]:
        """Return the fields that are known, by name."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoopAttributes(Attributes):
    """Of a `training_loop` span: its start and its targets."""

    train_iterations_start: int
    train_samples_start: int | None = None
    train_tokens_target: int | None = None
    completed_floating_point_operations_overall: float | None = None
    train_iterations_target: int | None = None
    train_samples_target: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaveSpanAttributes(Attributes):
    """Of a `checkpoint_save_sync` or `checkpoint_save_async` span."""

    checkpoint_strategy: str
    current_iteration: int
    save_checkpoint_attempt_count: int
    """Including failed ones and this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLoggerInitializationAttributes(Attributes):
    """Of `one_logger_initialization`, at the start of the application: which process of which job this is."""

    world_size: int
    one_logger_training_telemetry_version: str | None
    """The version of this package, not of OneLogger."""
    enable_for_current_rank: bool
    session_tag: str | None
    is_baseline_run: bool
    summary_data_schema_version: str
    node_name: str
    rank: int
    custom_metadata: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTelemetryAttributes(Attributes):
    """Of `update_training_telemetry_config`: the configuration from now on."""

    perf_tag: str | list[str] | None = None
    global_batch_size: int | None = None
    log_every_n_train_iterations: int
    micro_batch_size: int | None = None
    seq_length: int | None = None
    flops_per_sample: float | None = None
    train_iterations_target: int | None = None
    train_samples_target: int | None = None
    checkpoint_strategy: str | None = None
    is_train_iterations_enabled: bool | None = None
    is_validation_iterations_enabled: bool | None = None
    is_test_iterations_enabled: bool | None = None
    is_save_checkpoint_enabled: bool | None = None
    is_log_throughput_enabled: bool | None = None
    custom_metadata: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMetricsUpdateAttributes(Attributes):
    """Of `training_metrics_update`, every N iterations and once for the remainder: the training's throughput."""

    train_iterations_start: int
    current_iteration: int
    """The latest one; the first of all is 0."""
    num_iterations: int
    """Done in this job."""
    train_samples_start: int | None = None
    num_train_samples: int | None = None
    interval: int
    """Iterations since the last such event."""
    avg_iteration_time_sec: float
    min_iteration_time_sec: float
    max_iteration_time_sec: float
    total_iteration_time_sec: float
    avg_forward_time_sec: float | None = None
    avg_backward_time_sec: float | None = None
    avg_dataloader_time_sec: float | None = None
    avg_tflops: float | None = None
    train_tokens: int | None = None
    avg_tokens_per_second: float | None = None
    latest_loss: float | None = None
    avg_batch_size: float | None = None
    completed_floating_point_operations_overall: float | None = None
    total_flops: float | None = None
    train_throughput_per_gpu: float | None = None
    train_throughput_per_gpu_max: float | None = None
    train_throughput_per_gpu_min: float | None = None
    first_logged_train_iterations_finish_timestamp_sec: float | None = None
    last_logged_train_iterations_finish_timestamp_sec: float | None = None
    window_num_iterations: int
    window_avg_iteration_time_sec: float
    window_min_iteration_time_sec: float
    window_max_iteration_time_sec: float
    window_total_iteration_time_sec: float
    window_avg_forward_time_sec: float | None = None
    window_avg_backward_time_sec: float | None = None
    window_avg_dataloader_time_sec: float | None = None
    window_avg_batch_size: float | None = None
    window_avg_tokens_per_second: float | None = None
    window_throughput_per_gpu: float | None = None
    window_throughput_per_gpu_max: float | None = None
    window_throughput_per_gpu_min: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMetricsUpdateAttributes(Attributes):
    """Of `validation_metrics_update`, at the end of each validation loop."""

    current_iteration: int
    interval: int
    """Training iterations since the last such loop."""
    avg_iteration_time_sec: float | None = None
    min_iteration_time_sec: float | None = None
    max_iteration_time_sec: float | None = None
    total_iteration_time_sec: float | None = None
    window_num_iterations: int | None = None
    window_avg_iteration_time_sec: float | None = None
    window_min_iteration_time_sec: float | None = None
    window_max_iteration_time_sec: float | None = None
    window_total_iteration_time_sec: float | None = None


class ValidationMetricsUpdateAttributes(EvaluationMetricsUpdateAttributes):
    """Of `validation_metrics_update`, at the end of each validation loop."""

    __slots__ = ()


class TestingMetricsUpdateAttributes(EvaluationMetricsUpdateAttributes):
    """Of `testing_metrics_update`, at the end of each testing loop; OneLogger's has no times."""

    __slots__ = ()
    # pytest would collect a class of this name.
    __test__ = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpointSuccessEventAttributes(Attributes):
    """Of `save_checkpoint_success`: the work that is saved, as of the start of the checkpoint."""

    checkpoint_strategy: str
    current_iteration: int
    first_successful_save_checkpoint_timestamp_sec: float
    latest_successful_save_checkpoint_timestamp_sec: float
    save_checkpoint_success_count: int
    productive_train_iterations: int | None = None
    """Including those before this job."""
    productive_train_samples: int | None = None
    productive_train_iterations_sec: float | None = None
    """Of this job alone, as the next field."""
    productive_validation_iterations_sec: float | None = None
    productive_train_tflops: float | None = None
    checkpoint_size: int | None = None
    """Bytes."""
    checkpoint_directory: str | None = None
    training_start_timestamp_sec: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncCheckpointMetricsUpdateAttributes(Attributes):
    """Of `sync_checkpoint_metrics_update`: how long the training waited for checkpoints."""

    save_checkpoint_sync_time_total_sec: float
    save_checkpoint_sync_time_min_sec: float
    save_checkpoint_sync_time_max_sec: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAttributes(Attributes):
    """Of `error`: an exception raised in a phase of the job."""

    error_message: str
    exception_type: str
    exception_message: str
    exception_traceback: str
