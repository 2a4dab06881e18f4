"""`wandb.watch`: histograms of a model's gradients and parameters, counted on their device and fetched later.

A hook on the model counts its forward passes and does something only on every `log_freq`-th. Counts on a GPU are copied
to pinned memory behind the work queued there. A thread, which also writes the records, checks that memory for their
arrival: no step waits for a GPU, and no driver call from another thread breaks a CUDA graph that is being captured.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from toolkit.core.guard import Guard
from toolkit.telemetry.compat.null_object import warn_once

_BINS: Final = 32
_MOST_VALUES: Final = 65_536
"""Of one tensor: a larger one is sampled evenly, which shows its distribution as well."""
_MOST_TENSORS: Final = 1_000
"""Of one model; a record is written for each."""
_WAIT_S: Final = 1.0
"""How long the end of a run waits for counts on their way."""
_MAX_PENDING: Final = 16
_LOOK_EVERY_S: Final = 0.02
_MARK: Final = 0x7FA5F00D
"""A NaN that no arithmetic produces: it fills the memory until the copy arrives."""

Keep = Callable[[str, int, list[float], list[float], dict[str, Any]], None]
"""Takes a name, a step, counts, edges, and further fields."""


class Watch:
    """Watches the models that a script names, for one run."""

    def __init__(self, keep: Keep, guard: Guard, *, step: Callable[[], int]) -> None:
        self.guard = guard
        self._keep = keep
        self._step = step
        self._models: list[_Model] = []
        self._pending: deque[_Counts] = deque()
        self._pool = _PinnedPool()
        self._wake = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def add(self, models: Any, *, what: str | None, log_freq: int, idx: int | None) -> None:
        """Watch one model, or several."""
        torch = sys.modules.get("torch")
        given = list(models) if isinstance(models, (list, tuple)) else [models]
        for number, model in enumerate(given):
            if torch is None or not isinstance(model, torch.nn.Module):
                warn_once("wandb.watch", "takes models of torch's")
                continue
            if any(known.model is model for known in self._models):
                continue
            place = number if idx is None else idx + number
            prefix = f"graph_{place}" if place else ""
            with self.guard.catch("watching a model"):
                self._models.append(_Model(model, self, what or "", max(1, int(log_freq)), prefix))

    def remove(self, models: Any = None) -> None:
        """Stop watching one model, several, or all."""
        given = list(models) if isinstance(models, (list, tuple)) else [models]
        for watched in self._models[:]:
            if models is None or any(watched.model is model for model in given):
                with self.guard.catch("unwatching a model"):
                    watched.close()
                self._models.remove(watched)

    def send(self, names: list[str], counted: list[Any]) -> None:
        """Fetch counts from their device, and write them once they arrive."""
        if not counted or len(self._pending) >= _MAX_PENDING:
            return
        self._pending.append(_Counts(names, self._step(), counted, self._pool))
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="telemetry-histograms", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop watching, and wait a moment for counts on their way."""
        self.remove()
        self._is_closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_WAIT_S)

    def _write(self) -> None:
        """Write what has arrived, in order, until nothing more can come."""
        until = math.inf
        while True:
            if self._is_closing:
                until = min(until, time.monotonic() + _WAIT_S)
            if not self._pending:
                if self._is_closing:
                    return
                self._wake.wait()
                self._wake.clear()
            elif self._pending[0].has_arrived():
                with self.guard.catch("writing histograms"):
                    arrived = self._pending.popleft()
                    for name, counts, edges, more in arrived.read():
                        self._keep(name, arrived.step, counts, edges, more)
            elif time.monotonic() > until:
                return
            else:
                time.sleep(_LOOK_EVERY_S)


class _Model:
    """A watched model."""

    def __init__(self, model: Any, watch: Watch, what: str, log_freq: int, prefix: str) -> None:
        self.model = model
        self._watch = watch
        self._guard = watch.guard
        self._log_freq = log_freq
        self._gradients = what in ("gradients", "all")
        self._parameters = what in ("parameters", "all")
        self._prefix = prefix
        self._passes = 0
        self._handles: list[Any] = []
        self._counted: dict[str, Any] = {}
        self._hook = model.register_forward_hook(self._uncompiled(self._after_forward))

    def close(self) -> None:
        self._hook.remove()
        self._send_gradients()

    def _send_gradients(self) -> None:
        """Send the counts of the last recorded backward pass, which is complete by now."""
        self._disarm()
        counted, self._counted = self._counted, {}
        self._watch.send(list(counted), list(counted.values()))

    @staticmethod
    def _uncompiled(function: Callable[..., None]) -> Callable[..., None]:
        """Return a function that torch.compile skips: its counter would cause a recompilation at every step."""
        compiler = getattr(sys.modules["torch"], "compiler", None)
        disable = getattr(compiler, "disable", None)
        return disable(function) if disable is not None else function

    def _after_forward(self, *_: Any) -> None:
        with self._guard.catch("watching a model"):
            torch = sys.modules["torch"]
            if not self.model.training or not torch.is_grad_enabled():
                # An evaluation has no gradients.
                return
            if self._counted:
                self._send_gradients()
            self._passes += 1
            if self._passes % self._log_freq or _is_capturing(torch):
                return
            if self._parameters:
                named = list(self._named())
                names = [self._name("parameters", name) for name, _ in named]
                self._watch.send(names, [_count(torch, one.detach()) for _, one in named])
            if self._gradients:
                self._arm()

    def _named(self) -> Iterable[tuple[str, Any]]:
        named = [
            (name, one) for name, one in self.model.named_parameters() if one.requires_grad and one.numel()
        ]
        if len(named) > _MOST_TENSORS:
            warn_once("wandb.watch", f"looks at the first {_MOST_TENSORS:,} of {len(named):,} parameters")
        return named[:_MOST_TENSORS]

    def _name(self, what: str, name: str) -> str:
        return "/".join(part for part in (self._prefix, what, name) if part)

    def _arm(self) -> None:
        """Count the gradients of the next backward pass as they are computed, each once."""
        self._disarm()
        for name, parameter in self._named():
            self._handles.append(parameter.register_hook(self._counting(self._name("gradients", name))))

    def _disarm(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def _counting(self, name: str) -> Callable[[Any], None]:
        def count(gradient: Any) -> None:
            # A failure in here must not reach the backward pass.
            with self._guard.catch("counting a gradient"):
                torch = sys.modules["torch"]
                if name not in self._counted and not _is_capturing(torch):
                    self._counted[name] = _count(torch, gradient.detach())

        return count


class _PinnedPool:
    """Pinned host memory, reused because pinning is slow."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, ...], list[Any]] = {}

    def take(self, torch: Any, shape: tuple[int, ...]) -> Any:
        free = self._free.get(shape)
        memory = free.pop() if free else torch.empty(shape, dtype=torch.float32, pin_memory=True)
        memory.view(torch.int32).fill_(_MARK)
        return memory

    def give_back(self, memory: Any) -> None:
        self._free.setdefault(tuple(memory.shape), []).append(memory)


class _Counts:
    """Counts of some tensors on their way from a device."""

    def __init__(self, names: list[str], step: int, counted: list[Any], pool: _PinnedPool) -> None:
        torch = sys.modules["torch"]
        self.step = step
        self._names = names
        self._pool = pool
        # A model may span devices: the counts of each device are fetched together.
        groups: dict[Any, list[int]] = {}
        for number, one in enumerate(counted):
            groups.setdefault(one.device, []).append(number)
        self._groups: list[tuple[list[int], Any, bool]] = []
        with torch.no_grad(), torch.inference_mode(False):
            for device, numbers in groups.items():
                together = torch.stack([counted[number] for number in numbers])
                is_pinned = device.type == "cuda"
                if is_pinned:
                    host = pool.take(torch, tuple(together.shape))
                    host.copy_(together, non_blocking=True)
                else:
                    host = together.cpu()
                self._groups.append((numbers, host, is_pinned))

    def has_arrived(self) -> bool:
        torch = sys.modules["torch"]
        return not any(
            bool((host.view(torch.int32) == _MARK).any()) for _, host, is_pinned in self._groups if is_pinned
        )

    def read(self) -> Iterable[tuple[str, list[float], list[float], dict[str, Any]]]:
        for numbers, host, is_pinned in self._groups:
            rows = host.tolist()
            if is_pinned:
                self._pool.give_back(host)
            for number, row in zip(numbers, rows, strict=True):
                low, high, odd, *counts = row
                width = (high - low) / _BINS
                edges = [low + width * edge for edge in range(_BINS)] + [high]
                yield self._names[number], counts, edges, {"not_finite": int(odd)} if odd else {}


def _count(torch: Any, values: Any) -> Any:
    """Return min, max, the number of NaN and infinity, and the counts per bin, on the values' device."""
    with torch.no_grad():
        flat = values.to_dense().reshape(-1) if values.is_sparse else values.reshape(-1)
        stride = -(-flat.numel() // _MOST_VALUES)
        flat = flat[::stride].float()
        if flat.device.type == "cpu":
            return _count_here(torch, flat)
        is_finite = torch.isfinite(flat)
        flat = torch.where(is_finite, flat, torch.zeros_like(flat))
        low, high = torch.aminmax(flat)
        width = (high - low).clamp_min(1e-30) / _BINS
        places = ((flat - low) / width).long().clamp_(0, _BINS - 1)
        counts = torch.zeros(_BINS, device=flat.device)
        # NaN and infinity are in no bin.
        counts.scatter_add_(0, places, is_finite.float())
        odd = (~is_finite).sum().float()
        return torch.cat([torch.stack([low, high, odd]), counts])


def _count_here(torch: Any, flat: Any) -> Any:
    """Return the same for values in host memory."""
    finite = flat[torch.isfinite(flat)]
    low, high = torch.aminmax(finite) if finite.numel() else (torch.zeros(()), torch.zeros(()))
    # Equal values all go into one bin: torch would treat equal limits as none given.
    is_one = bool(low == high)
    counts = torch.zeros(_BINS) if is_one else torch.histc(finite, _BINS, low.item(), high.item())
    if is_one:
        counts[0] = finite.numel()
    odd = torch.tensor(float(flat.numel() - finite.numel()))
    return torch.cat([torch.stack([low, high, odd]), counts])


def _is_capturing(torch: Any) -> bool:
    """Return whether a CUDA graph is being captured: our work would become part of it."""
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
