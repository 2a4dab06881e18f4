"""The old path of toolkit.privacy.redaction, kept for scripts that import from it."""

import warnings

from toolkit.privacy.redaction import Redactor

__all__ = ["Redactor"]

warnings.warn(
    "toolkit.telemetry.privacy.redaction is toolkit.privacy.redaction now", DeprecationWarning, stacklevel=2
)
