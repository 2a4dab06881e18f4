"""The stored inputs: where they are, and how they are replayed."""

from __future__ import annotations

import os
from pathlib import Path

from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).parent / "corpus"


def inputs_of(target: Target) -> list[Path]:
    """Return the files with inputs of one target, in the same order everywhere."""
    return sorted(path for path in (CORPUS / target.name).glob("*") if path.is_file())


def replay(target: Target, path: Path) -> None:
    """Run one stored input; any exception is a broken promise."""
    target.fuzz_one(path.read_bytes())


def size_of_all() -> int:
    """Return how many bytes all inputs take."""
    return sum(os.path.getsize(path) for target in TARGETS.values() for path in inputs_of(target))
