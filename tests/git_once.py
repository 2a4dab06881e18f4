"""Asks git about a repository once a process, instead of with four processes in each run that a test makes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.lengths import is_long
from toolkit.telemetry.logger.machine import environment

_ask_git = environment.describe_repository


def ask_git_once() -> None:
    """Have the runs of this process, and of those that are forked from it, ask git once."""
    environment._PARTS["git"] = _remembered


@pytest.fixture(autouse=True)
def git_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the runs of a test's own process ask git once in all tests; `make faults` asks each time."""
    if not is_long():
        monkeypatch.setitem(environment._PARTS, "git", _remembered)


def _remembered() -> dict[str, Any] | None:
    here = Path.cwd()
    repository = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)
    return None if repository is None else _answer(repository)


@functools.cache
def _answer(_: Path) -> dict[str, Any] | None:
    return _ask_git()
