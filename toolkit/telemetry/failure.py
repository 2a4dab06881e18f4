"""An exception as the fields of an error record."""

from __future__ import annotations

import os
import traceback
from typing import Any

from toolkit.telemetry.guard import describe_error
from toolkit.telemetry.privacy.masking import mask_secrets

_MAX_FRAMES = 30
_LONGEST = 500
"""Characters of a message that are looked at."""


def describe_failure(error: BaseException) -> dict[str, Any]:
    """Return type, message and stack of `error` as text; nothing of it is kept alive, and no local value is shown."""
    frames = traceback.extract_tb(error.__traceback__, limit=-_MAX_FRAMES)
    return {
        "type": type(error).__name__,
        "message": mask_secrets(_whole_words(describe_error(error))),
        "stack": mask_secrets(
            [f"{_shown_path(frame.filename)}:{frame.lineno} in {frame.name}" for frame in frames]
        ),
    }


def _whole_words(message: str) -> str:
    """Return a message that was cut at its end without its last word: half a secret does not look like one."""
    return message if len(message) < _LONGEST else f"{message.rpartition(' ')[0]} …"


def _shown_path(path: str) -> str:
    """Return `path` as seen from where the script runs, or from the user's home: whose that is concerns nobody."""
    home = os.path.expanduser("~")
    try:
        here = os.getcwd()
    except OSError:
        here = home
    for folder, shown in ((here, ""), (home, "~" + os.sep)):
        if len(folder) > 1 and path.startswith(folder + os.sep):
            return shown + path[len(folder) + 1 :]
    return path
