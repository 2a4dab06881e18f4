"""The GPU backends of torch that the script uses; torch is never imported and no device initialised."""

from __future__ import annotations

import sys
from typing import Any


def cuda_in_use() -> Any:
    """Return `torch.cuda`, which is ROCm's too, where the script has initialised it, else None."""
    # It may be half-way through its import on another thread.
    cuda = sys.modules.get("torch.cuda")
    return cuda if getattr(cuda, "is_initialized", bool)() else None


def mps_in_use() -> Any:
    """Return `torch.mps` where torch is imported and runs on an Apple GPU, else None."""
    is_available = getattr(sys.modules.get("torch.backends.mps"), "is_available", bool)()
    return sys.modules.get("torch.mps") if is_available and "torch" in sys.modules else None
