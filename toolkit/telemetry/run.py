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
    is_module = given[:1] == ["-m"]
    target, sys.argv = (given[is_module:] or [""])[0], given[is_module:]
    if not target or (target.startswith("-") and not is_module):
        wrong = "usage: python -m toolkit.telemetry.run [-m MODULE | SCRIPT] [ARGUMENTS]"
    elif is_module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return 0
    elif os.path.exists(target):
        sys.path[0] = os.path.dirname(os.path.abspath(target))
        runpy.run_path(target, run_name="__main__")
        return 0
    else:
        wrong = f"there is no script {target!r}"
    sys.stderr.write(f"[telemetry] {wrong}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
