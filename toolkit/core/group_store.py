"""The key-value store of torch's process group, through which the ranks of a job find each other."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

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
    distributed: Any = sys.modules["torch.distributed"]
    store: Any = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way
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
