"""What git knows about the repository of the training script.

Its commit, branch and remote are read from git's own files. Git itself is started only for the changes since the
commit, which nothing else can tell.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.logger.machine.ask_program import answer_of
from toolkit.telemetry.logger.machine.own_code import find_own_code
from toolkit.telemetry.privacy.masking import mask_secrets

GIT_TIMEOUT_S: Final = 2.0
MOST_DIFF_BYTES: Final = 1_000_000
_MOST_NAMES_BYTES: Final = 1_000_000
_MOST_OF_A_FILE: Final = 16 << 20

_COMMIT: Final = re.compile(r"[0-9a-f]{40,64}")
_REMOTE: Final = re.compile(r'^\[remote "origin"\]\n(?:[ \t].*\n)*?[ \t]*url *= *(.+)$', re.MULTILINE)
_URL_LOGIN: Final = re.compile(r"(?<=://)[^/@\s]+@")
""""https://user:password@" and "https://token@" alike; "git@host:" is no URL, and holds no secret."""

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

    diff: str | None = None
    """None where git did not give it."""
    untracked: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def describe_repository() -> dict[str, Any] | None:
    """Describe the repository of the script, or of the current folder; None without one, or before its first commit."""
    code = find_own_code()
    if not code.has_git:
        return None
    own = code.root / ".git"
    if own.is_file():
        # Of a worktree or a submodule.
        own = code.root / _text_of(own).removeprefix("gitdir:").strip()
    shared = own / (_text_of(own / "commondir").strip() or os.curdir)
    head = _text_of(own / "HEAD").strip()
    reference = head.removeprefix("ref:").strip() if head.startswith("ref:") else ""
    commit = _commit_at(reference, own, shared) if reference else head
    if not _COMMIT.fullmatch(commit):
        return None
    described: dict[str, Any] = {"commit": commit}
    if reference.startswith("refs/heads/"):
        described["branch"] = reference.removeprefix("refs/heads/")
    remote = _REMOTE.search(_text_of(shared / "config"))
    if remote is not None:
        described |= mask_secrets({"remote": _URL_LOGIN.sub("", remote[1].strip())})
    return described


def _commit_at(reference: str, own: Path, shared: Path) -> str:
    for folder in (own, shared):
        commit = _text_of(folder / reference).strip()
        if commit:
            return commit
    packed = re.search(rf"^(\S+) {re.escape(reference)}$", _text_of(shared / "packed-refs"), re.MULTILINE)
    return packed[1] if packed else ""


def _text_of(path: Path) -> str:
    """Return the text of a file of git's, empty where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_OF_A_FILE).decode("utf-8", "replace")
    except OSError:
        return ""


def changes_in(root: Path) -> Changes:
    """Ask git what was changed in the repository at `root` since its commit, and which of its files are new."""
    diff = _git(root, *_DIFF, most_bytes=MOST_DIFF_BYTES)
    names = _git(root, "ls-files", "--others", "--exclude-standard", "-z", most_bytes=_MOST_NAMES_BYTES)
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
    return Changes(diff=diff, untracked=(names or "").split("\0")[:-1], left_out=left_out)


def changed_names(diff: str) -> list[str]:
    """Return the files that a diff changes or adds."""
    return [name.rstrip("\t") for name in re.findall(r"^\+\+\+ b/(.+)$", diff, re.MULTILINE)]


def _git(folder: Path, *arguments: str, most_bytes: int) -> str | None:
    # A hook of git names the repository that it was called for, which may be another one.
    kept = {name: value for name, value in os.environ.items() if name.startswith(_KEPT) or name[:4] != "GIT_"}
    return answer_of(
        *("git", *_QUIETLY, *arguments),
        folder=str(folder),
        environ=kept | _NO_LOCK_OR_NETWORK,
        timeout_s=GIT_TIMEOUT_S,
        most_bytes=most_bytes,
    )
