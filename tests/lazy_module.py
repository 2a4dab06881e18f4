"""Imports a large package where a test first uses it: every worker collects every test, and runs a few of them."""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stands for a module, which is imported when the first attribute is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            # pytest looks at everything in a test file.
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
