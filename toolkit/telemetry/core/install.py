"""How to install what is missing, in a command that works with this Python."""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path


def install_command(*wanted: str, short: bool = True) -> str:
    """Return the command that installs `wanted`; a `short` one leaves it to the shell which pip that is."""
    python = sys.executable or "python"
    if find_spec("pip") is not None:
        return shlex.join([*(["pip"] if short else [python, "-m", "pip"]), "install", *wanted])
    # Imported where something is missing.
    from shutil import which

    if which("uv"):
        return shlex.join(["uv", "pip", "install", "--python", python, *wanted])
    # Neither is there: conda has pip as a package, and elsewhere Python brings it.
    in_conda = os.path.isdir(os.path.join(sys.prefix, "conda-meta"))
    first = "conda install pip" if in_conda else f"{shlex.quote(python)} -m ensurepip"
    return f"{first} && {shlex.join([python, '-m', 'pip', 'install', *wanted])}"


def install_extra(extra: str, *, short: bool = True) -> str:
    """Return the command that installs this package with one of its extras, from where it was installed."""
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote

    place = str(Path(__file__).parents[3])
    if os.path.isfile(os.path.join(place, "pyproject.toml")):
        return install_command("-e", f"{place}[{extra}]", short=short)
    place = "ai-toolkit-telemetry"
    with suppress(PackageNotFoundError, KeyError, TypeError, ValueError):
        # By its name it would come from an index, where another's package may have it.
        origin = json.loads(distribution(place).read_text("direct_url.json") or "")
        place = unquote(origin["url"].removeprefix("file://"))
    return install_command(f"{place}[{extra}]", short=short)
