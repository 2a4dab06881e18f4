"""Which process of a distributed run this is."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
_LAUNCH_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "OMPI_MCA_ess_base_jobid",
)


@dataclass(frozen=True, slots=True)
class Rank:
    """This process among the processes of its run."""

    rank: int = 0
    world_size: int = 1


def find_rank() -> Rank:
    """Return this process's rank: torch.distributed's if it is initialised, else the launcher's variables."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(distributed.get_rank(), distributed.get_world_size())
    for rank_name, size_name in _RANK_VARIABLES:
        rank = _number(rank_name)
        if rank is not None:
            return Rank(rank, max(_number(size_name) or 1, rank + 1))
    return Rank()


def launch_id() -> str | None:
    """Return what the processes of one launch have in common, or None outside of a launcher."""
    found = [f"{name}={os.environ[name]}" for name in _LAUNCH_VARIABLES if os.environ.get(name)]
    return " ".join(found) or None


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
