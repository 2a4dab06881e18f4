"""Configurations that are for ai-toolkit's own trainers, and what they need."""

from __future__ import annotations

from pathlib import Path

AI_TOOLKIT_TYPES = ("sd_trainer", "diffusion_trainer", "ui_trainer")
"""Process types that ai-toolkit trains; the embedded trainer never pretends to."""


def is_checkout(folder: Path) -> bool:
    """Whether `folder` is the root of an ai-toolkit checkout."""
    return (folder / "jobs").is_dir() and (folder / "toolkit" / "job.py").is_file()


def what_is_missing(kind: str, config: Path, folder: Path) -> str:
    """Say in two lines what a configuration of type `kind` needs before it can be trained from `folder`."""
    if is_checkout(folder):
        return (
            f"type {kind} is trained by ai-toolkit's own run.py, and {folder} is a checkout of it.\n"
            f"Start it there: python {folder / 'run.py'} {config}"
        )
    return (
        f"type {kind} is trained by ai-toolkit, and {folder} is not a checkout of it (no jobs/ and toolkit/job.py).\n"
        "Get one with `git clone https://github.com/ostris/ai-toolkit`, install it as its README says, "
        "and run from its folder."
    )
