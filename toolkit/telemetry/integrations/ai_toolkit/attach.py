"""Attaches telemetry to an ai-toolkit checkout (one file), detaches it, and reports the status."""

from __future__ import annotations

from contextlib import suppress
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

    hook_trainers()


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


def is_checkout(folder: Path) -> bool:
    """Return whether `folder` is the root of an ai-toolkit checkout."""
    return (folder / "jobs").is_dir() and (folder / "toolkit" / "job.py").is_file()


def attach(checkout: Path) -> Path:
    """Write the file, replacing an older one of ours, and return its path.

    Raises:
        AttachError: `checkout` is not a checkout, has its own telemetry, or has another file of that name.
        OSError: it could not be written.
    """
    path, _ = attached_file(checkout)
    for own in ("telemetry.py", "telemetry"):
        if (checkout / "toolkit" / own).exists():
            raise AttachError(
                f"{checkout / 'toolkit' / own} is in the way: this checkout has its own telemetry. "
                "Move it away to record trainings with this package; run folders it has written stay readable"
            )
    path.parent.mkdir(exist_ok=True)
    replace_file(path, extension_text().encode(), mode=0o644)
    return path


def detach(checkout: Path) -> Path | None:
    """Remove the file and its compiled version, and return its path; None if there is no file.

    Raises:
        AttachError: `checkout` is not a checkout, or the file is not ours.
        OSError: it could not be removed.
    """
    path, text = attached_file(checkout)
    if text is None:
        return None
    path.unlink()
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        with suppress(OSError):
            compiled.unlink()
    return path


def attached_file(checkout: Path) -> tuple[Path, str | None]:
    """Return the path of the file and its text, which is None if there is no file.

    Raises:
        AttachError: `checkout` is not a checkout, or a file of that name is not ours.
    """
    if not is_checkout(checkout):
        raise AttachError(f"{checkout} {_NOT_A_CHECKOUT}")
    path = checkout / "extensions" / FILE_NAME
    if not path.exists() and not path.is_symlink():
        return path, None
    is_readable = path.is_file() and path.stat().st_size <= _MAX_BYTES
    text = path.read_text("utf-8", "replace") if is_readable else ""
    if _MARK not in text:
        raise AttachError(f"{path} was not written by `telemetry setup ai-toolkit attach`; it is left alone")
    return path, text


def extension_text(toolkit_folder: Path | None = None) -> str:
    """Return the file's text, for this package or one at `toolkit_folder`."""
    # Relative to this file: inside a checkout `toolkit` is ai-toolkit's package, with ours added to its path.
    folder = toolkit_folder or Path(__file__).resolve().parents[3]
    return _TEXT.replace("@MARK@", _MARK).replace("@FOLDER@", repr(str(folder)))
