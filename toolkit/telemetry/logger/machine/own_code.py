"""Which files are the training's own code: its script, and what it imports from the same folder or repository."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_INSTALLED: Final = ("site-packages", "dist-packages")
_MOST_FILES: Final = 200
_COMMANDS: Final = ("bin", "Scripts")


class OwnCode(NamedTuple):
    """Where the training's own code is."""

    root: Path
    """The repository of the script, or its folder. Without a script (a notebook, an installed command) those of the
    current folder."""
    script: Path | None
    has_git: bool
    """Whether `root` is a repository."""


def _main_file() -> object:
    main = sys.modules.get("__main__")
    return object.__getattribute__(main, "__dict__").get("__file__") if main is not None else None


_FIRST_FILE: Final = _main_file()
"""Python forgets it as the script ends, and a short script is described after that."""


def find_own_code() -> OwnCode:
    """Return where the code of this process is."""
    file = _main_file() or _FIRST_FILE
    try:
        script = Path(os.path.abspath(file)) if isinstance(file, str) else None
        if script is not None and (_is_installed(script) or not script.is_file()):
            script = None
        folder = Path.cwd() if script is None else script.parent
    except OSError:
        # It is gone.
        script, folder = None, Path(os.sep)
    for above in (folder, *folder.parents):
        if (above / ".git").exists():
            return OwnCode(root=above, script=script, has_git=True)
    return OwnCode(root=folder, script=script, has_git=False)


def own_modules(root: Path) -> list[str]:
    """Return the files below `root` that were imported, without installed packages and this one."""
    places = tuple({os.path.join(place, "") for place in (root, os.path.realpath(root))})
    found = []
    # A copy in one step: other threads import.
    for name, module in sys.modules.copy().items():
        try:
            # A module that is loaded when it is first used would be loaded by asking it.
            file = object.__getattribute__(module, "__dict__").get("__file__")
        except (AttributeError, TypeError):
            continue
        is_own = isinstance(file, str) and file.startswith(places) and file.endswith(".py")
        if is_own and not f"{name}.".startswith("toolkit.telemetry.") and not _is_installed(Path(file)):
            found.append(file)
    return found


def code_files() -> dict[str, str] | None:
    """Return a short digest of the script and of each of its modules, so that ranks can be compared; None without."""
    code = find_own_code()
    found: dict[str, str] = {}
    scripts = [] if code.script is None else [str(code.script)]
    for file in [*scripts, *own_modules(code.root)][:_MOST_FILES]:
        with suppress(OSError):
            name = os.path.relpath(os.path.realpath(file), os.path.realpath(code.root))
            found[Path(name).as_posix()] = hashlib.blake2b(Path(file).read_bytes(), digest_size=6).hexdigest()
    return found or None


def _is_installed(file: Path) -> bool:
    """Return whether a file came with Python or with a package."""
    if any(part in _INSTALLED for part in file.parts) or file.is_relative_to(sysconfig.get_path("stdlib")):
        return True
    # A command such as `accelerate`, which pip has written.
    return file.parent.name in _COMMANDS and file.suffix != ".py"
