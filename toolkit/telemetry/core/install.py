"""How to install what is missing, in a command that works with this Python."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib.util import find_spec


def install_command(*wanted: str, short: bool = True) -> str:
    """Return the command that installs `wanted`; a `short` one leaves it to the shell which pip that is."""
    python = sys.executable or "python"
    if find_spec("pip") is not None:
        return shlex.join([*(["pip"] if short else [python, "-m", "pip"]), "install", *wanted])
    if shutil.which("uv"):
        return shlex.join(["uv", "pip", "install", "--python", python, *wanted])
    # Neither is there: conda has pip as a package, and elsewhere Python brings it.
    in_conda = os.path.isdir(os.path.join(sys.prefix, "conda-meta"))
    first = "conda install pip" if in_conda else f"{shlex.quote(python)} -m ensurepip"
    return f"{first} && {shlex.join([python, '-m', 'pip', 'install', *wanted])}"


def install_extra(extra: str) -> str:
    """Return the command that installs this package with one of its extras."""
    return install_command(f"ai-toolkit-telemetry[{extra}]")
