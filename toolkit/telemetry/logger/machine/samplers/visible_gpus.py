"""Which NVIDIA GPUs this process sees, in the order in which CUDA, and so torch, numbers them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_MOST_GPUS: Final = 256
_MOST_SLICES: Final = 64
"""Of one machine, and of one GPU. A driver that says four billion does not know, and would be asked for each."""


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """A device as the training script counts it, with NVML's handles for it."""

    index: int
    device: Any
    """What the script computes on: the GPU, or the MIG slice of it."""
    board: Any
    """What draws power and gets hot: the whole GPU."""


def visible_gpus(nvml: Any, environ: Mapping[str, str]) -> list[VisibleGpu]:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` leaves, numbered from 0.

    A GPU that NVML lists but cannot open keeps its number and is left out.

    Raises:
        NVMLError: NVML cannot list its devices, or open any of them.
    """
    handles = _handles(nvml)
    uuids = [None if handle is None else _uuid(nvml, handle) for handle in handles]
    gpus = []
    for index, chosen in enumerate(select(environ.get("CUDA_VISIBLE_DEVICES"), uuids)):
        if isinstance(chosen, str):
            device = _handle_by_uuid(nvml, chosen)
            if device is not None:
                gpus.append(
                    VisibleGpu(index, device, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device))
                )
        elif (board := handles[chosen]) is not None:
            gpus.append(VisibleGpu(index, _first_mig_slice(nvml, board) or board, board))
    return gpus


def gpus_as_torch_counts(nvml: Any) -> list[VisibleGpu] | None:
    """Return the GPUs in torch's own order, or None while torch has not initialised CUDA (or cannot say).

    The variable alone does not define the order on a machine with mixed models: by default CUDA counts the fastest
    first.
    """
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not getattr(cuda, "is_initialized", bool)():
        return None
    gpus = []
    for index in range(cuda.device_count()):
        uuid = getattr(cuda.get_device_properties(index), "uuid", None)
        device = None if uuid is None else _handle_by_uuid(nvml, f"GPU-{uuid}")
        if device is None:
            return None
        gpus.append(VisibleGpu(index, _first_mig_slice(nvml, device) or device, device))
    return gpus


def select(visible: str | None, uuids: Sequence[str | None]) -> list[int | str]:
    """Return what a value of `CUDA_VISIBLE_DEVICES` chooses: NVML's indexes, or the name of one MIG slice.

    As CUDA reads it: unset is everything, empty is nothing, the first entry that names no device hides itself and
    all after it, and of MIG slices a process sees only the first.
    """
    if visible is None:
        return list(range(len(uuids)))
    names = [name.strip() for name in visible.split(",")]
    if names[0].startswith("MIG-"):
        return [names[0]]
    by_uuid = names[0].startswith("GPU-")
    chosen: list[int | str] = []
    for name in names:
        index = _index_of_uuid(name, uuids) if by_uuid else _index_of_number(name, len(uuids))
        if index is None:
            break
        chosen.append(index)
    return chosen


def _index_of_number(text: str, count: int) -> int | None:
    return int(text) if text.isdecimal() and int(text) < count else None


def _index_of_uuid(text: str, uuids: Sequence[str | None]) -> int | None:
    """Return the one device whose UUID begins with `text`; a beginning that two share names neither."""
    if not text.startswith("GPU-"):
        return None
    found = [index for index, uuid in enumerate(uuids) if uuid is not None and uuid.startswith(text)]
    return found[0] if len(found) == 1 else None


def _handles(nvml: Any) -> list[Any]:
    handles: list[Any] = []
    failure: Exception | None = None
    for index in range(min(nvml.nvmlDeviceGetCount(), _MOST_GPUS)):
        handle = None
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError_NoPermission:
            # Another container's.
            pass
        except nvml.NVMLError as error:
            failure = error
        handles.append(handle)
    if failure is not None and not any(handle is not None for handle in handles):
        # GPUs there are, and something is wrong with all of them: they are not to be forgotten for the whole run.
        raise failure
    return handles


def _uuid(nvml: Any, handle: Any) -> str | None:
    try:
        return _text(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError:
        return None


def _handle_by_uuid(nvml: Any, uuid: str) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return None


def _first_mig_slice(nvml: Any, board: Any) -> Any:
    """Return the slice that a process sees of a GPU in MIG mode, or None where it is in no such mode."""
    try:
        if not nvml.nvmlDeviceGetMigMode(board)[0]:
            return None
        slots = nvml.nvmlDeviceGetMaxMigDeviceCount(board)
    except nvml.NVMLError:
        return None
    for slot in range(min(slots, _MOST_SLICES)):
        try:
            return nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, slot)
        except nvml.NVMLError:
            continue
    return None


def _text(value: str | bytes) -> str:
    # Older releases of NVML's Python module answer in bytes.
    return value.decode() if isinstance(value, bytes) else value
