"""Runs the script of a training in a process forked from this one, which has imported all that takes long."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkProcess
from pathlib import Path


def import_all() -> None:
    """Import what takes long, once for all trainings that are forked from here: the first optimizer imports most."""
    import torch

    import toolkit.telemetry  # noqa: F401

    # Forked processes inherit no threads, so there must be none that they wait for.
    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.ones(1))
    weight.sum().backward()
    torch.optim.AdamW([weight]).step()


def start(
    folder: Path, output: str, variables: Mapping[str, str] | None = None, packages: Sequence[Path] = ()
) -> ForkProcess:
    """Start `train.py` of `folder` there; what it prints goes to the file `output`."""
    process = multiprocessing.get_context("fork").Process(
        target=_run, args=(folder, output, variables or {}, [str(path.absolute()) for path in packages])
    )
    process.start()
    return process


def end(process: ForkProcess, what: str, code: int = 0) -> None:
    """Wait until it ends.

    Raises:
        RuntimeError: it ended otherwise than with `code`.
    """
    process.join()
    if process.exitcode != code:
        raise RuntimeError(f"{what} ended with {process.exitcode}: see its output there")


def _run(folder: Path, output: str, variables: Mapping[str, str], packages: Sequence[str]) -> None:
    os.chdir(folder)
    # Without a buffer: what a session that is killed said is there.
    with open(output, "ab", 0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # As a user's training records: what a test run or a shell turned off, such as the code, is on.
    for name in [name for name in os.environ if name.startswith("TELEMETRY_")]:
        del os.environ[name]
    os.environ.update(variables)
    sys.argv = ["train.py"]
    sys.path[:0] = [os.getcwd(), *packages]
    runpy.run_path("train.py", run_name="__main__")
