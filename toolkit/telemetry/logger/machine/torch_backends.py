"""The GPU backends of torch that the script uses; torch is never imported and no device initialised."""

from __future__ import annotations

import sys
from typing import Any, Final

_WITH_COUNTERS: Final = (("cuda", "torch.cuda"), ("xpu", "torch.xpu"))
"""Backends whose allocators keep counters in host memory. ROCm is torch.cuda too."""


def backends_in_use() -> list[tuple[str, Any]]:
    """Return the kind and the module of each backend that the script has initialised."""
    # A module may be half-way through its import on another thread.
    found = [(kind, sys.modules.get(module)) for kind, module in _WITH_COUNTERS]
    return [(kind, module) for kind, module in found if getattr(module, "is_initialized", bool)()]


def mps_in_use() -> Any:
    """Return `torch.mps` where torch is imported and runs on an Apple GPU, else None."""
    is_available = getattr(sys.modules.get("torch.backends.mps"), "is_available", bool)()
    return sys.modules.get("torch.mps") if is_available and "torch" in sys.modules else None
