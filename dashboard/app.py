"""The script that Streamlit runs for each visitor; what it draws is in `pages.py`."""

from __future__ import annotations

import os
import sys
from importlib import import_module

# As a script it has no package: it is of the one that serves it, `dashboard` in a checkout.
_HERE = os.path.dirname(os.path.abspath(__file__))
_NAMES = ("dashboard", "ai_toolkit_telemetry.dashboard")
_package = next(
    (name for name in _NAMES if _HERE in getattr(sys.modules.get(name), "__path__", ())), _NAMES[0]
)

import_module(f"{_package}.pages").show()
