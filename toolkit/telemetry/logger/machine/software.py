"""The software that a run is made with, and the settings that decide whether it can be repeated."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from toolkit.telemetry.runfolder.records import WELL_KNOWN_PACKAGES

_INSTALLED: Final = re.compile(r"(?P<name>.+?)-(?P<version>[0-9][^-]*)(?:-py[0-9.]+)?\.(?:dist|egg)-info")
_MOST_PACKAGES: Final = 1_000
_VARIABLES: Final = (
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF"),
    *("OMP_NUM_THREADS", "NCCL_ALGO", "NCCL_PROTO", "XLA_FLAGS", "TF_DETERMINISTIC_OPS"),
)
_BY_SYSTEM: Final = 0x80000000
"""The first number of numpy's state where the system gave the seed."""


def installed_packages() -> dict[str, str]:
    """Return the version of each installed package, those first whose versions change what a training run does."""
    # An installed package has a folder that is called after its name and version. Reading their names costs a
    # hundredth of what importlib.metadata does, which parses each package's whole description as an e-mail.
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            entries = os.listdir(folder or os.curdir)
        except OSError:
            continue
        for entry in sorted(entries):
            match = _INSTALLED.fullmatch(entry) if entry.endswith("-info") else None
            if match is not None:
                found.setdefault(re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"])
    known = {name: found[name] for name in WELL_KNOWN_PACKAGES if name in found}
    return dict(
        [*known.items(), *sorted(item for item in found.items() if item[0] not in known)][:_MOST_PACKAGES]
    )


def cuda_version() -> str | None:
    """Return the version of CUDA (or ROCm) that torch was built for, where the script has imported it."""
    version = getattr(sys.modules.get("torch"), "version", None)
    hip = getattr(version, "hip", None)
    return f"ROCm {hip}" if hip else getattr(version, "cuda", None)


def cudnn_version() -> str | None:
    """Return the version of cuDNN: the loaded one where the script uses CUDA already, else the installed one."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized() and (loaded := torch.backends.cudnn.version()) is not None:
        return str(loaded)
    packages = installed_packages()
    return next((packages[name] for name in packages if name.startswith("nvidia-cudnn")), None)


def determinism(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that decide whether a run can be repeated to the last digit. Nothing is initialised."""
    torch: Any = sys.modules.get("torch")
    found = {name: environ[name] for name in _VARIABLES if name in environ}
    if torch is None:
        return found
    asked: dict[str, Callable[[], Any]] = {
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "deterministic_algorithms": lambda: torch.are_deterministic_algorithms_enabled(),
        "tf32": lambda: _allows_tf32(torch.backends.cuda.matmul),
    }
    return {**_answers(asked), **found}


def seeds(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the seeds that can be seen: that of torch, that of numpy if it was just set, that of Python's hashes."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    asked: dict[str, Callable[[], Any]] = {
        "torch": lambda: torch.initial_seed(),  # type: ignore[union-attr]  # without it there is no answer
        "numpy": lambda: _seed_in(numpy.random.get_state(legacy=False)["state"]),  # type: ignore[union-attr]
        "python_hash": lambda: environ.get("PYTHONHASHSEED"),
        "lightning": lambda: environ.get("PL_GLOBAL_SEED"),
    }
    return _answers(asked)


def _allows_tf32(matmul: Any) -> bool:
    # Newer versions have another name for it, and refuse the old one where both were used.
    precision = getattr(matmul, "fp32_precision", None)
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def _seed_in(state: Mapping[str, Any]) -> int | None:
    """Return the seed of a generator that has not been used since; afterwards it is overwritten."""
    first = int(state["key"][0])
    return first if int(state["pos"]) == len(state["key"]) and first != _BY_SYSTEM else None


def _answers(asked: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, ask in asked.items():
        try:
            found[name] = ask()
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
            # Another version of a package, one that is being imported, or one that refuses mixed settings.
            pass
    return {name: value for name, value in found.items() if value is not None}
