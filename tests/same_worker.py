"""Files that one worker runs, because they import the same large packages: each import is paid for once."""

from __future__ import annotations

from typing import Any

_INTEGRATIONS = "tests/telemetry/integrations"

_GROUPS = {
    "transformers and Lightning": (
        f"{_INTEGRATIONS}/test_transformers.py",
        f"{_INTEGRATIONS}/test_axolotl.py",
        f"{_INTEGRATIONS}/test_trl_completions.py",
        f"{_INTEGRATIONS}/test_accelerate.py",
        f"{_INTEGRATIONS}/test_lightning.py",
        f"{_INTEGRATIONS}/test_every_framework.py",
    ),
    "a dashboard process": (
        "tests/attacks/test_http_exposure.py",
        "tests/attacks/test_floods.py",
        "tests/attacks/test_login_access.py",
        "tests/attacks/test_token_access.py",
        "tests/dashboard/test_launcher.py",
        "tests/dashboard/test_network_guard.py",
        "tests/dashboard/test_page_messages.py",
    ),
    "processes that train together": (
        "tests/faults/test_fork.py",
        "tests/faults/test_ranks.py",
        "tests/telemetry/test_consensus.py",
    ),
    "engines": ("tests/fleet/",),
    "wandb": (
        "tests/mirrors/exporters/test_wandb.py",
        "tests/telemetry/compat/test_wandb.py",
        "tests/telemetry/compat/test_wandb_media.py",
    ),
}
"""Groups of files; a name that ends with a slash is all files of a folder."""

_GROUP_OF = {file: group for group, files in _GROUPS.items() for file in files}
_LONGEST_FIRST = ("browser", "attacks", "faults", "load", "fuzz")
"""Folders of files that take long: begun last, one worker would be busy with one of them while the others rest."""


def group_of(nodeid: str) -> str:
    """Return the group of a test's file, or the file itself."""
    file = nodeid.partition("::")[0]
    return _GROUP_OF.get(file) or _GROUP_OF.get(file[: file.rfind("/") + 1], file)


def when_it_begins(nodeid: str) -> int:
    """Return the place of a test in the order in which files are begun: the longest first."""
    group = group_of(nodeid)
    if group in _GROUPS:
        return list(_GROUPS).index(group)
    folder = nodeid.split("/")[1]
    rank = _LONGEST_FIRST.index(folder) if folder in _LONGEST_FIRST else len(_LONGEST_FIRST)
    return len(_GROUPS) + rank


def make_scheduler(config: Any, log: Any) -> Any:
    """Return a scheduler of pytest-xdist that gives all files of a group to one worker."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)
