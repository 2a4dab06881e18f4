"""Which rank this process is, and the store of its process group."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

from toolkit.telemetry.runfolder.process import host_name

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


class Rank(NamedTuple):
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


_PATIENCE_AT_EXIT_S: Final = 10.0
"""How long the end of a process waits for a store's server that is silent just then."""
_LOOK_EVERY_S: Final = 0.01


class Store(Protocol):
    """The part of `torch.distributed.Store` that is needed here. No call waits for another rank."""

    def set(self, key: str, value: str, /) -> None:
        """Put `value` under `key`."""

    def get(self, key: str, /) -> bytes:
        """Return what is under `key`, which is there."""

    def check(self, keys: list[str], /) -> bool:
        """Say whether all `keys` are there."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Put `desired` under `key` where that holds `expected` ("": where it is not there); return what is there."""


def has_process_group() -> bool:
    """Say whether torch's default process group is there."""
    # Never imports torch: a process that has not imported it has no process group.
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def process_group_store() -> Store | None:
    """Return the key-value store of torch's default process group; None where there is no such group."""
    if not has_process_group():
        return None
    # A group exists only where the script has imported it; importing torch takes seconds.
    distributed: Any = sys.modules["torch.distributed"]
    # The one thing that all ranks share without a collective; torch has no public name for it.
    store: Any = distributed.distributed_c10d._get_default_store()  # noqa: SLF001
    return _of_our_own(store)


def _of_our_own(store: Any) -> Store:
    """Return `store` over a connection of its own, where it can have one.

    A server that does not answer then holds up a call of ours and none of the training's, nor its process at the end.
    """
    try:
        own: Store = store.clone()
    except (AttributeError, NotImplementedError, RuntimeError):
        # An older torch, or a store written in Python.
        own = store
    return own


_asking: set[int] = set()
"""Threads that are inside of a call to a store."""


@contextmanager
def asking_in_background() -> Iterator[None]:
    """Surround calls to a store on a thread that nothing waits for.

    A thread that comes back from torch while the interpreter is being taken down brings the whole process down with it,
    and with another exit code than the training's. So the process, at its very end, first lets such a call come back.
    """
    thread = threading.get_ident()
    _asking.add(thread)
    try:
        yield
    finally:
        _asking.discard(thread)


def _let_calls_come_back() -> None:
    deadline = time.monotonic() + _PATIENCE_AT_EXIT_S
    while _asking and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)


# Registered before any logger is made, and so called after what loggers do at the end.
atexit.register(_let_calls_come_back)
if hasattr(os, "register_at_fork"):
    # Those threads do not exist in a child.
    os.register_at_fork(after_in_child=_asking.clear)
