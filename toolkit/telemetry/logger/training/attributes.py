"""The events of a training job, and the attributes of its spans and events, with OneLogger's names.

Each set is made where its values are known. Fields that begin with `window_` are ours: they cover the
iterations since the last such event, while OneLogger's own fields are totals for the job.
"""

from __future__ import annotations

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

Attributes = dict[str, Any]


def known(**fields: Any) -> Attributes:
    """Return the attributes that are known: one that is None is left out of the record."""
    return {name: value for name, value in fields.items() if value is not None}
