"""An exception as the fields of an error record."""

from __future__ import annotations

import traceback
from typing import Any

from toolkit.telemetry.guard import describe_error
from toolkit.telemetry.privacy.masking import mask_secrets

_MAX_FRAMES = 30


def describe_failure(error: BaseException) -> dict[str, Any]:
    """Return type, message and stack of `error` as text; nothing of it is kept alive, and no local value is shown."""
    frames = traceback.extract_tb(error.__traceback__, limit=-_MAX_FRAMES)
    return {
        "type": type(error).__name__,
        "message": mask_secrets(describe_error(error)),
        "stack": [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames],
    }
