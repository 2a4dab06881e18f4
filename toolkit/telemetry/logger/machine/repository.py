"""What git says about the repository of the training script."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.logger.machine.ask_program import Question
from toolkit.telemetry.logger.machine.own_code import find_own_code
from toolkit.telemetry.privacy.masking import mask_secrets

GIT_TIMEOUT_S: Final = 2.0
MOST_DIFF_BYTES: Final = 1_000_000
_MOST_NAMES_BYTES: Final = 1_000_000

# A repository's own settings can name programs for git to run: none of them is. And a question takes no lock.
_QUIETLY: Final = tuple("-c core.fsmonitor=false -c core.hooksPath=/dev/null -c core.quotePath=false".split())
_NO_LOCK_OR_NETWORK: Final = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
}
_KEPT: Final = ("GIT_CONFIG", "GIT_EXEC_PATH")
_DIFF: Final = (
    *("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"),
    *("--ignore-submodules=dirty", "--src-prefix=a/", "--dst-prefix=b/"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a working tree has that its commit has not."""

    diff: str = ""
    untracked: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def describe_repository() -> dict[str, Any] | None:
    """Describe the repository of the script, or of the current folder; None without one, or without git."""
    code = find_own_code()
    if not code.has_git or shutil.which("git") is None:
        return None
    folder = str(code.root)
    deadline = time.monotonic() + GIT_TIMEOUT_S
    questions = {
        "head": _git(folder, "rev-parse", "HEAD", "--abbrev-ref", "HEAD"),
        # Untracked files do not count: looking for them can take minutes next to a data set.
        "dirty": _git(folder, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty"),
        "remote": _git(folder, "config", "--get", "remote.origin.url"),
    }
    answers = {name: question.answer(deadline) for name, question in questions.items()}
    head = (answers["head"] or "").strip()
    if not head:
        return None
    commit, _, branch = head.partition("\n")
    described: dict[str, Any] = {"commit": commit}
    if branch not in ("", "HEAD"):
        described["branch"] = branch
    if answers["dirty"] is not None:
        described["dirty"] = bool(answers["dirty"].strip())
    if answers["remote"]:
        described |= mask_secrets({"remote": _URL_LOGIN.sub("", answers["remote"].strip())})
    return described


def changes_in(root: Path, *, is_dirty: bool) -> Changes:
    """Return what was changed in the repository at `root` since its commit, and the names of its new files."""
    deadline = time.monotonic() + GIT_TIMEOUT_S
    new = _git(str(root), "ls-files", "--others", "--exclude-standard", "-z")
    diff = _git(str(root), *_DIFF).answer(deadline, MOST_DIFF_BYTES) if is_dirty else ""
    names = new.answer(deadline, _MOST_NAMES_BYTES)
    left_out = {}
    if diff is None:
        left_out["the diff"] = f"git did not give it within {GIT_TIMEOUT_S:g} s"
    elif len(diff.encode()) >= MOST_DIFF_BYTES:
        diff = diff[: diff.rfind("\n") + 1]
        left_out["the rest of the diff"] = f"of the diff the first {MOST_DIFF_BYTES / 1e6:g} MB are kept"
    if names is None:
        left_out["new files"] = f"git did not list them within {GIT_TIMEOUT_S:g} s"
    elif len(names.encode()) >= _MOST_NAMES_BYTES:
        left_out["further new files"] = f"their names take more than {_MOST_NAMES_BYTES / 1e6:g} MB"
    return Changes(diff=diff or "", untracked=(names or "").split("\0")[:-1], left_out=left_out)


def changed_names(diff: str) -> list[str]:
    """Return the files that a diff changes or adds."""
    return [name.rstrip("\t") for name in re.findall(r"^\+\+\+ b/(.+)$", diff, re.MULTILINE)]


# "https://user:password@" and "https://token@" alike; "git@host:" is no URL, and holds no secret.
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")


def _git(folder: str, *arguments: str) -> Question:
    # A hook of git names the repository that it was called for, which may be another one.
    kept = {name: value for name, value in os.environ.items() if name.startswith(_KEPT) or name[:4] != "GIT_"}
    return Question("git", *_QUIETLY, *arguments, folder=folder, environ=kept | _NO_LOCK_OR_NETWORK)
