"""Lightning's base classes, from whichever of its two packages the script uses."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import new_class
from typing import Any, Final

_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")
"""One framework under two names, each with its own classes."""


def class_of_lightning(name: str) -> Any:
    """Return the framework's class of that name, as a base class.

    It comes from the package that the script has imported (from both if it imported both), else from the installed
    one: a trainer accepts only objects of its own package.

    Raises:
        ImportError: neither is installed.
    """
    imported = [package for package in _PACKAGES if package in sys.modules]
    installed = [package for package in _PACKAGES if find_spec(package.partition(".")[0]) is not None]
    packages = imported or installed[:1]
    if not packages:
        raise ImportError("neither lightning nor pytorch_lightning is installed: pip install lightning")
    if name == "Logger":
        packages = [f"{package}.loggers" for package in packages]
    return new_class(name, tuple(getattr(import_module(package), name) for package in packages))
