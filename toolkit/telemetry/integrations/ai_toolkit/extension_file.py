"""The text of the file that `telemetry attach` writes into an ai-toolkit checkout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

FILE_NAME: Final = "ai_toolkit_telemetry.py"
"""The file's name in `extensions/`, which ai-toolkit's own .gitignore excludes."""

_MARK: Final = "# Written by `telemetry attach`, and replaced by it: changes made here are lost."
_OURS = re.compile(r"^TOOLKIT_FOLDER = (?P<folder>'[^\n]*'|\"[^\n]*\")$", re.MULTILINE)
_ALL_JOBS = re.compile(r"^ALL_JOBS = (?P<all>True|False)$", re.MULTILINE)

# ai-toolkit imports every file of the folder before every job and catches no exceptions. So the file imports nothing
# outside of its `try`, and catches everything.
_TEXT: Final = '''\
"""Telemetry for ai-toolkit's trainers; `telemetry detach` removes it."""
@MARK@

TOOLKIT_FOLDER = @FOLDER@
ALL_JOBS = @ALL_JOBS@
AI_TOOLKIT_EXTENSIONS = []


def _folders():
    import os
    import sys

    yield TOOLKIT_FOLDER
    # It may have moved since: a package of the name "toolkit" that is not ai-toolkit's own may be on the path.
    for place in sys.path:
        yield os.path.join(place or os.curdir, "toolkit")


def _attach():
    import os

    import toolkit

    # ai-toolkit has a package "toolkit" too, and its own comes first; ours is found once its folder is added there.
    for folder in _folders():
        if os.path.isfile(os.path.join(folder, "telemetry", "integrations", "ai_toolkit", "hooks.py")):
            if folder not in toolkit.__path__:
                toolkit.__path__.append(folder)
            break
    else:
        raise ImportError("the telemetry package is not in %s any more; attach it again" % TOOLKIT_FOLDER)

    from toolkit.telemetry.integrations.ai_toolkit.hooks import hook_trainers

    hook_trainers(all_jobs=ALL_JOBS)


try:
    _attach()
except Exception as error:
    try:
        import sys

        print(
            "[telemetry] this job is not recorded (%s: %s); the training itself is not affected"
            % (type(error).__name__, error),
            file=sys.stderr,
        )
        if isinstance(error, ModuleNotFoundError) and error.name in ("orjson", "psutil", "pynvml", "yaml"):
            print("[telemetry] pip install orjson psutil nvidia-ml-py PyYAML", file=sys.stderr)
    except Exception:
        pass
'''


def extension_text(toolkit_folder: Path, *, all_jobs: bool) -> str:
    """Return the file's text, for this package at `toolkit_folder`."""
    return (
        _TEXT.replace("@MARK@", _MARK)
        .replace("@FOLDER@", repr(str(toolkit_folder)))
        .replace("@ALL_JOBS@", str(all_jobs))
    )


def is_ours(text: str) -> bool:
    """Return whether a file with this text was written by `telemetry attach`."""
    return _MARK in text


def records_all_jobs(text: str) -> bool:
    """Return whether a file with this text records jobs without a `telemetry:` block, too."""
    found = _ALL_JOBS.search(text)
    return found is not None and found["all"] == "True"


def folder_in(text: str) -> str | None:
    """Return the folder where a file with this text first looks for this package, as written there."""
    found = _OURS.search(text)
    return found["folder"][1:-1] if found is not None else None
