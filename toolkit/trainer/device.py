"""Chooses the device, and makes torch deterministic on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def choose_device(wanted: str) -> torch.device:
    """Return the device `wanted`; `auto` is a GPU if there is one. Raises ValueError if this machine has no such."""
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = torch.device(wanted)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"{wanted} is not available: torch sees {torch.cuda.device_count()} CUDA devices")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("mps is not available: torch sees no Apple GPU")
    return device


@contextmanager
def deterministic() -> Iterator[None]:
    """Make torch compute the same bits each time inside the block, on any number of cores."""
    # cuBLAS reads this when it is first used, and refuses to be deterministic without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.use_deterministic_algorithms(True)
    # Nothing here reads memory before writing it, so filling it would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # made at run time
    # Sums differ when they are split. At this size several threads gain little on an idle machine, and on a busy one
    # they wait for each other: on two shared cores one thread is four times as fast as two.
    torch.set_num_threads(1)
    # On Arm, oneDNN uses its own threads regardless of torch's setting, and is four times slower on thin matrices.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # a property, though not typed as one
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = onednn
