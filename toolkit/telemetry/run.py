"""Runs a script that does not import us, so that it can report by name: `python -m toolkit.telemetry.run train.py …`.

The script runs as `__main__` with its own arguments, as without us; `-m MODULE` runs a module.
"""

from __future__ import annotations

import os
import runpy
import sys

# For what it does: from here on the frameworks know the name.
import toolkit.telemetry  # noqa: F401


def main() -> int:
    """Run what the arguments name; 2 and one sentence if they name nothing that can be run."""
    given = sys.argv[1:]
    if given[:1] == ["-m"] and len(given) > 1:
        sys.argv = given[1:]
        runpy.run_module(given[1], run_name="__main__", alter_sys=True)
    elif given and os.path.exists(given[0]):
        sys.argv, sys.path[0] = given, os.path.dirname(os.path.abspath(given[0]))
        runpy.run_path(given[0], run_name="__main__")
    else:
        usage = "usage: python -m toolkit.telemetry.run [-m MODULE | SCRIPT] [ARGUMENTS]"
        is_option = not given or given[0].startswith("-")
        sys.stderr.write(f"[telemetry] {usage if is_option else f'there is no script {given[0]!r}'}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
