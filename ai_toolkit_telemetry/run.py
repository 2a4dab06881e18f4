"""`python -m ai_toolkit_telemetry.run train.py …`: runs a script that does not import us, which reports by name.

The script runs as `__main__` with its own arguments, as without us; `-m MODULE` runs a module.
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib import import_module

from ai_toolkit_telemetry import find_toolkit


def main() -> int:
    """Run what the arguments name; 2 and one sentence if they name nothing that can be run."""
    given = sys.argv[1:]
    if given[:1] == ["-m"] and len(given) > 1:
        sys.argv = given[1:]
        _add_names()
        runpy.run_module(given[1], run_name="__main__", alter_sys=True)
    elif given and os.path.exists(given[0]):
        sys.argv, sys.path[0] = given, os.path.dirname(os.path.abspath(given[0]))
        _add_names()
        runpy.run_path(given[0], run_name="__main__")
    else:
        usage = "usage: python -m ai_toolkit_telemetry.run [-m MODULE | SCRIPT] [ARGUMENTS]"
        is_option = not given or given[0].startswith("-")
        sys.stderr.write(f"[telemetry] {usage if is_option else f'there is no script {given[0]!r}'}\n")
        return 2
    return 0


def _add_names() -> None:
    # With the script's folder on the path: a `toolkit` that is there stays the script's.
    find_toolkit()
    import_module("toolkit.telemetry.integrations")


if __name__ == "__main__":
    sys.exit(main())
