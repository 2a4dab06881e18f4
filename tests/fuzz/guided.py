"""One target under atheris, in a process of its own: libFuzzer ends the process when it is done or has found something.

python -m tests.fuzz.guided TARGET [libFuzzer's options and folders of inputs]
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["toolkit", "dashboard"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz the target that is named."""
    name, *options = sys.argv[1:]
    atheris.Setup([name, *options], TARGETS[name].fuzz_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
