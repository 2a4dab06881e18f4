"""Runs a script that does not import us, so that it can report by name: `python -m toolkit.telemetry.run train.py …`.

The script runs as `__main__` with its own arguments, as without us. `-m MODULE` runs a module. Launchers start it with
their own `-m`: `accelerate launch -m toolkit.telemetry.run train.py --report_to telemetry`.
"""

from __future__ import annotations

import os
import runpy
import sys

# For what it does: from here on the frameworks know the name.
import toolkit.telemetry  # noqa: F401


def main() -> None:
    """Run what the arguments name. Exits with 2 and one sentence if that is missing."""
    given = sys.argv[1:]
    is_module = given[:1] == ["-m"]
    if len(given) <= is_module or (given[0].startswith("-") and not is_module):
        sys.exit(_wrong("usage: python -m toolkit.telemetry.run [-m MODULE | SCRIPT] [ARGUMENTS]"))
    target, sys.argv = given[is_module], given[is_module:]
    if is_module:
        # `python -m` looks in the current folder first.
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    elif not os.path.exists(target):
        sys.exit(_wrong(f"there is no script {target!r}"))
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(target))
        runpy.run_path(target, run_name="__main__")


def _wrong(sentence: str) -> int:
    sys.stderr.write(f"[telemetry] {sentence}\n")
    return 2


if __name__ == "__main__":
    main()
