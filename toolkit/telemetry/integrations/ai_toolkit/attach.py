"""Attaches telemetry to an ai-toolkit checkout (one file), detaches it, and reports the status."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.telemetry.runfolder.safefile import replace_file

FILE_NAME: Final = "ai_toolkit_telemetry.py"
"""The file's name in `extensions/`, which ai-toolkit's own .gitignore excludes."""

_MARK: Final = "# Written by `telemetry attach`, and replaced by it: changes made here are lost."

# ai-toolkit imports every file of the folder before every job and catches no exceptions. So the file imports nothing
# outside of its `try`, and catches everything.
_TEXT: Final = '''\
"""Telemetry for ai-toolkit's trainers; `telemetry setup ai-toolkit detach` removes it."""
@MARK@

TOOLKIT_FOLDER = @FOLDER@
ALL_JOBS = @ALL_JOBS@
AI_TOOLKIT_EXTENSIONS = []


def _attach():
    import os
    import sys

    # For this import alone: nothing else of that folder may hide what the job imports.
    sys.path.insert(0, os.path.dirname(TOOLKIT_FOLDER))
    try:
        from ai_toolkit_telemetry import find_toolkit
    except ImportError:
        raise ImportError("the telemetry package is not in %s any more; attach it again" % TOOLKIT_FOLDER)
    finally:
        del sys.path[0]
    # ai-toolkit has a package "toolkit" too, which comes first.
    find_toolkit()

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

_MAX_BYTES: Final = 64 * 1024
IMPORT_FIRST: Final = (
    f"import extensions.{Path(FILE_NAME).stem}",
    "from toolkit.telemetry import TelemetryLogger",
)
"""Imports for your own script in an attached checkout, where `toolkit` is ai-toolkit's package."""
_NOT_A_CHECKOUT: Final = "is not an ai-toolkit checkout: it has no jobs/ and toolkit/job.py"


class AttachError(Exception):
    """A folder is not a checkout or cannot be attached to; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """The status of a checkout."""

    path: Path
    """The path of the file, whether or not it exists."""
    is_there: bool = False
    is_current: bool = False
    """Whether it is what `attach` would write now."""
    all_jobs: bool = False
    toolkit_folder: str | None = None
    """The folder where it first looks for this package."""


def is_checkout(folder: Path) -> bool:
    """Return whether `folder` is the root of an ai-toolkit checkout."""
    return (folder / "jobs").is_dir() and (folder / "toolkit" / "job.py").is_file()


def attach(checkout: Path, *, all_jobs: bool = False) -> Path:
    """Write the file, replacing an older one of ours, and return its path.

    Raises:
        AttachError: `checkout` is not a checkout, has its own telemetry, or has another file of that name.
        OSError: it could not be written.
    """
    path = status(checkout).path
    for own in ("telemetry.py", "telemetry"):
        if (checkout / "toolkit" / own).exists():
            raise AttachError(
                f"{checkout / 'toolkit' / own} is in the way: this checkout has its own telemetry. "
                "Move it away to record trainings with this package; run folders it has written stay readable"
            )
    path.parent.mkdir(exist_ok=True)
    replace_file(path, extension_text(_our_folder(), all_jobs=all_jobs).encode(), mode=0o644)
    return path


def detach(checkout: Path) -> Path | None:
    """Remove the file and its compiled version, and return its path; None if there is no file.

    Raises:
        AttachError: `checkout` is not a checkout, or the file is not ours.
        OSError: it could not be removed.
    """
    found = status(checkout)
    if not found.is_there:
        return None
    found.path.unlink()
    for compiled in (found.path.parent / "__pycache__").glob(f"{found.path.stem}.*.pyc"):
        with suppress(OSError):
            compiled.unlink()
    return found.path


def status(checkout: Path) -> Attachment:
    """Return the status of `checkout`.

    Raises:
        AttachError: `checkout` is not a checkout, or a file of that name is not ours.
    """
    if not is_checkout(checkout):
        raise AttachError(f"{checkout} {_NOT_A_CHECKOUT}")
    path = checkout / "extensions" / FILE_NAME
    if not path.exists() and not path.is_symlink():
        return Attachment(path=path)
    text = ""
    if path.is_file() and path.stat().st_size <= _MAX_BYTES:
        text = path.read_text("utf-8", "replace")
    if _MARK not in text:
        raise AttachError(f"{path} was not written by `telemetry setup ai-toolkit attach`; it is left alone")
    all_jobs = re.search(r"^ALL_JOBS = True$", text, re.MULTILINE) is not None
    folder = re.search(r"^TOOLKIT_FOLDER = (?:'([^\n]*)'|\"([^\n]*)\")$", text, re.MULTILINE)
    return Attachment(
        path=path,
        is_there=True,
        is_current=text == extension_text(_our_folder(), all_jobs=all_jobs),
        all_jobs=all_jobs,
        toolkit_folder=(folder[1] or folder[2]) if folder else None,
    )


def _our_folder() -> Path:
    # Relative to this file: inside a checkout `toolkit` is ai-toolkit's package, with ours added to its path.
    return Path(__file__).resolve().parents[3]


def extension_text(toolkit_folder: Path, *, all_jobs: bool) -> str:
    """Return the file's text, for this package at `toolkit_folder`."""
    return (
        _TEXT.replace("@MARK@", _MARK)
        .replace("@FOLDER@", repr(str(toolkit_folder)))
        .replace("@ALL_JOBS@", str(all_jobs))
    )
