"""Copies tensors from a device to host memory without waiting for them."""

from __future__ import annotations

import sys
from typing import Any, Final

_ALIGNMENT: Final = 64


class PinnedBuffer:
    """Pinned memory that a GPU copies to while it works on; reused, because allocating it may wait for the GPU."""

    def __init__(self, size_bytes: int, *, for_gpu: bool) -> None:
        self._memory: Any = None
        self._used = 0
        if for_gpu:
            torch = sys.modules["torch"]
            # Inference-mode tensors cannot be written to later.
            with torch.inference_mode(False):
                self._memory = torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    @property
    def free_bytes(self) -> int:
        """Bytes that are free; unlimited if there is no GPU, since host tensors do not use the buffer."""
        return sys.maxsize if self._memory is None else len(self._memory) - self._used

    def take(self, tensor: Any) -> AsyncCopy | None:
        """Return a copy of `tensor` as of now, which arrives later; None without room, or in a CUDA graph capture."""
        torch = sys.modules["torch"]
        tensor = tensor.detach()
        if not tensor.is_cuda:
            # Apple's and Intel's queues cannot be polled without waiting for them.
            return AsyncCopy(tensor.clone() if tensor.device.type == "cpu" else tensor.cpu(), None)
        size = tensor.numel() * tensor.element_size()
        if size > self.free_bytes or self._memory is None or torch.cuda.is_current_stream_capturing():
            return None
        host = self._memory[self._used : self._used + size].view(tensor.dtype).view(tensor.shape)
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        host.copy_(tensor, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(tensor.device))
        return AsyncCopy(host, arrived)

    def clear(self) -> None:
        """Reuse the whole buffer; all copies must have been read."""
        self._used = 0


class AsyncCopy:
    """The values of a tensor, once they have arrived."""

    def __init__(self, host: Any, arrived: Any) -> None:
        self._host = host
        self._arrived = arrived

    @property
    def has_arrived(self) -> bool:
        """Whether the values have arrived; this does not wait."""
        return self._arrived is None or bool(self._arrived.query())

    def values(self) -> list[Any]:
        """Return the values, which must have arrived."""
        return self._host.tolist()  # type: ignore[no-any-return]
