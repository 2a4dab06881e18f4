"""Which process of a distributed run this is."""

from __future__ import annotations

import os
import sys
import zlib
from dataclasses import dataclass

from toolkit.runfolder.process import host_name

_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
_LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LAUNCH_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "OMPI_MCA_ess_base_jobid",
)

_first_names: dict[str, str] = {}
"""The name of the first run of this process, by the id that the launcher gave."""


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


def local_rank() -> int | None:
    """Return the number of this process among those of its node, as the launcher gives it; None if it does not."""
    return next((number for name in _LOCAL_RANK_VARIABLES if (number := _number(name)) is not None), None)


def is_chosen(ranks: str, rank: Rank) -> bool:
    """Return whether `rank` writes records if the option `ranks` has this value; rank 0 always does."""
    if rank.rank == 0 or ranks == "all":
        return True
    if ranks == "first_per_node":
        return local_rank() == 0
    word, _, number = ranks.partition(":")
    return word == "every" and rank.rank % int(number) == 0


def node_name() -> str:
    """Return the name of this node, from `TELEMETRY_NODE` or else the host name."""
    return os.environ.get("TELEMETRY_NODE", "").strip() or host_name()


def given_run_id(run_name: str) -> str | None:
    """Return the run id that the launcher gives to all ranks of a job in `TELEMETRY_RUN_ID`; None without one.

    It is that of the first run that the process begins. A run of another name gets one made of it.
    """
    given = os.environ.get("TELEMETRY_RUN_ID", "").strip()
    if not given:
        return None
    is_first = _first_names.setdefault(given, run_name) == run_name
    return given if is_first else f"{given}-{zlib.crc32(run_name.encode('utf-8', 'replace')):08x}"


def launch_id() -> str | None:
    """Return what the processes of one launch have in common, or None outside of a launcher."""
    found = [f"{name}={os.environ[name]}" for name in _LAUNCH_VARIABLES if os.environ.get(name)]
    return " ".join(found) or None


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
