"""`%load_ext toolkit.telemetry.notebook`: the magics of a notebook, `%telemetry` and `%%telemetry`."""

from __future__ import annotations

from typing import Any, Final

_MAGICS: Final = "toolkit.telemetry.cli.notebook"
"""By name: it reads runs, which the logger never does."""


def load_ipython_extension(shell: Any) -> None:
    """Add the magics to a shell of IPython."""
    shell.extension_manager.load_extension(_MAGICS)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics."""
    shell.extension_manager.unload_extension(_MAGICS)
