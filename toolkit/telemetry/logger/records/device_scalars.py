"""Numbers that a GPU has yet to compute, taken without waiting for it.

The value is copied to pinned host memory after the work that is already queued, so it is the value as of the call,
whatever happens to the tensor later. Each place in that memory holds a mark until the copy lands on it: whether a value
has arrived is seen by looking at memory, with no call to the driver, which could wait, or spoil a graph capture that
another thread has under way.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, Final

PLACES: Final = 4096
"""Values under way at one time; more than that and a value is noted as not taken."""

_MARK32: Final = 0xFFA5F00D
_MARK64: Final = 0xFFF5A5A5F00DBEEF
"""Both are NaNs of a kind that no arithmetic makes."""


class Refusal:
    """Why a value was not taken."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


class PendingScalar:
    """A number on its way from a device."""

    __slots__ = ("_kind", "_place", "_pool")

    def __init__(self, pool: _PinnedPool, place: int, kind: str) -> None:
        self._pool = pool
        self._place = place
        self._kind = kind

    def poll(self) -> float | int | None:
        """Return the number if it has arrived, else None at once; after it was returned its place is used again."""
        return self._pool.read(self._place, self._kind)


class DeviceScalars:
    """Takes scalars of any torch device; torch itself is never imported from here, only met."""

    def __init__(self) -> None:
        self._pool: _PinnedPool | None = None

    def take(self, tensor: Any) -> float | int | bool | list[Any] | PendingScalar | Refusal | None:
        """Return the number in `tensor`: at once for one in host memory, else as a `PendingScalar`."""
        torch = sys.modules["torch"]
        if not isinstance(tensor, torch.Tensor):
            return Refusal("not a tensor")
        if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
            local = _local_value(tensor)
            if isinstance(local, Refusal):
                return local
            tensor = local
        count = tensor.numel()
        device = tensor.device.type
        if count != 1:
            if device == "cpu" and count <= 64 and not tensor.is_complex():
                return tensor.tolist()  # type: ignore[no-any-return]
            return Refusal(f"shape {tuple(tensor.shape)}, not one number")
        if tensor.is_complex():
            return Refusal("a complex number")
        if device == "cpu":
            return tensor.item()  # type: ignore[no-any-return]
        if device == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return Refusal("its stream is being captured into a graph: log it after the replay")
            self._pool = self._pool or _PinnedPool(torch)
            return self._pool.take(torch, tensor)
        if device == "meta":
            return Refusal("a meta tensor has no value")
        # Apple's queue has no memory we can watch; it is asked, which waits for it.
        return tensor.detach().item()  # type: ignore[no-any-return]


class _PinnedPool:
    """Pinned host memory of eight bytes a place."""

    def __init__(self, torch: Any) -> None:
        # Made once: pinning memory is slow. Outside of inference mode, whose tensors may not be written to later.
        with torch.inference_mode(False):
            memory = torch.zeros(PLACES * 8, dtype=torch.uint8, pin_memory=True)
            self._places = {
                torch.float32: memory.view(torch.float32)[::2],
                torch.float64: memory.view(torch.float64),
                torch.int64: memory.view(torch.int64),
            }
        self._memory = memory
        # Views of the pinned memory: its numbers are read without a call of torch.
        address = memory.data_ptr()
        # Imported when used: most machines have no GPU.
        import ctypes

        self._bits32 = (ctypes.c_uint32 * (PLACES * 2)).from_address(address)
        self._bits64 = (ctypes.c_uint64 * PLACES).from_address(address)
        self._float32 = (ctypes.c_float * (PLACES * 2)).from_address(address)
        self._float64 = (ctypes.c_double * PLACES).from_address(address)
        self._int64 = (ctypes.c_int64 * PLACES).from_address(address)
        self._free = deque(range(PLACES))
        self._views: dict[tuple[Any, int], Any] = {}
        self._kinds = {torch.float32: "f32", torch.float64: "f64", torch.int64: "i64"}

    def take(self, torch: Any, tensor: Any) -> PendingScalar | Refusal:
        tensor = tensor.detach()
        if tensor.dtype not in self._kinds:
            tensor = tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)
        if tensor.dim():
            tensor = tensor.reshape(())
        try:
            # The place that was freed last: few places are ever used, and their views are made once.
            place = self._free.pop()
        except IndexError:
            return Refusal(f"more than {PLACES} values under way")
        kind = self._kinds[tensor.dtype]
        if kind == "f32":
            self._bits32[2 * place] = _MARK32
        else:
            self._bits64[place] = _MARK64
        view = self._views.get((tensor.dtype, place))
        if view is None:
            view = self._views[tensor.dtype, place] = self._places[tensor.dtype][place]
        view.copy_(tensor, non_blocking=True)
        return PendingScalar(self, place, kind)

    def read(self, place: int, kind: str) -> float | int | None:
        value: float | int
        if kind == "f32":
            if self._bits32[2 * place] == _MARK32:
                return None
            value = self._float32[2 * place]
        elif self._bits64[place] == _MARK64:
            return None
        elif kind == "f64":
            value = self._float64[place]
        else:
            value = self._int64[place]
        self._free.append(place)
        return value


def _local_value(tensor: Any) -> Any:
    """Return what this process holds of a tensor subclass; a distributed one that would need the others is refused."""
    placements = getattr(tensor, "placements", None)
    if placements is not None:
        if all(type(placement).__name__ == "Replicate" for placement in placements):
            return tensor.to_local()
        return Refusal("spread over several ranks: call full_tensor() on all of them first")
    return tensor
