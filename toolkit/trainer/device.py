"""Where the model is trained, and that it computes the same there each time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def choose_device(wanted: str) -> torch.device:
    """Return the device called `wanted`; `auto` is a GPU where there is one.

    Raises:
        ValueError: this machine has no such device.
    """
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = torch.device(wanted)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"{wanted} is not here: torch sees {torch.cuda.device_count()} CUDA devices")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("mps is not here: torch sees no Apple GPU")
    return device


@contextmanager
def deterministic() -> Iterator[None]:
    """Make torch compute the same bits each time, however many cores there are, for as long as the block lasts."""
    # cuBLAS reads this when it is first used, and refuses to be deterministic without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.use_deterministic_algorithms(True)
    # Nothing here reads memory before writing it, so filling it would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # made at run time
    # Sums come out differently when they are split. And at this size several threads gain little on an idle machine,
    # while on a busy one they wait for each other: on two cores shared with others, one is four times as fast as two.
    torch.set_num_threads(1)
    # On Arm oneDNN keeps threads of its own whatever torch is told, and takes thin matrices four times as long.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # a property in all but its type
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = onednn
