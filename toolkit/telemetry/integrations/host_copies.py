"""Tensors on their way from a device to host memory, without anybody waiting for them."""

from __future__ import annotations

import sys
from typing import Any, Final

_ALIGNED_TO: Final = 64


class HostRoom:
    """Memory that a GPU copies to beside its other work.

    It is made once and used again: making memory of this kind takes long, and may wait for the GPU.
    """

    def __init__(self, room_bytes: int, *, for_gpu: bool) -> None:
        self._memory: Any = None
        self._used = 0
        if for_gpu:
            torch = sys.modules["torch"]
            # Outside of inference mode, whose tensors may not be written to later.
            with torch.inference_mode(False):
                self._memory = torch.empty(room_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    @property
    def left(self) -> int:
        """Bytes that can still be copied here; what is in host memory already needs none."""
        return sys.maxsize if self._memory is None else len(self._memory) - self._used

    def take(self, tensor: Any) -> HostCopy | None:
        """Return what `tensor` holds at this moment, in host memory as soon as the GPU gets there.

        None where there is no room for it, or where the GPU's work is being recorded and not done.
        """
        torch = sys.modules["torch"]
        tensor = tensor.detach()
        if not tensor.is_cuda:
            # Apple's and Intel's queues cannot be asked without waiting for them.
            return HostCopy(tensor.clone() if tensor.device.type == "cpu" else tensor.cpu(), None)
        size = tensor.numel() * tensor.element_size()
        if size > self.left or self._memory is None or torch.cuda.is_current_stream_capturing():
            return None
        place = self._memory[self._used : self._used + size].view(tensor.dtype).view(tensor.shape)
        self._used += -(-size // _ALIGNED_TO) * _ALIGNED_TO
        place.copy_(tensor, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(tensor.device))
        return HostCopy(place, arrived)

    def clear(self) -> None:
        """Use the room anew; all that was taken must have been read."""
        self._used = 0


class HostCopy:
    """What a tensor held, once it is here."""

    def __init__(self, host: Any, arrived: Any) -> None:
        self._host = host
        self._arrived = arrived

    @property
    def is_here(self) -> bool:
        """Whether the values have arrived; asking does not wait."""
        return self._arrived is None or bool(self._arrived.query())

    def values(self) -> list[Any]:
        """Return the values, which have arrived."""
        return self._host.tolist()  # type: ignore[no-any-return]
