"""Independent random streams from one seed: step 300 draws the same numbers regardless of earlier steps."""

from __future__ import annotations

import hashlib

import torch


def derived_seed(seed: int, stream: str, number: int = 0) -> int:
    """Return the seed of the `number`-th part of `stream`; unlike parts are unrelated."""
    digest = hashlib.blake2b(f"{seed}/{stream}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def derived_generator(
    seed: int, stream: str, number: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return a generator on `device` at the start of that part."""
    return torch.Generator(device=device).manual_seed(derived_seed(seed, stream, number))
