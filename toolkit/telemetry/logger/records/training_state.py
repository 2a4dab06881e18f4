"""What a checkpoint holds of a training, as a few numbers: equal states give equal numbers, on any machine.

The numbers are of some values spread over the tensors, so that a large model costs no more than a small one. Nothing
is changed, no random number is drawn, and a GPU is not waited for: its numbers are on their way when this returns.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard

_TENSORS: Final = 16
_VALUES: Final = 256
"""How many tensors are looked at, and how many values of each."""
_MOMENTS: Final = {
    "moment1_norm": ("exp_avg", "momentum_buffer", "state1", "z"),
    "moment2_norm": ("exp_avg_sq", "state2", "square_avg", "exp_inf", "exp_avg_sq_row", "sum"),
}
"""What optimizers call their first and second moments: torch's own, bitsandbytes' (`state1`), schedule-free ones (`z`),
Adafactor; the first name that is there counts."""
_PLAIN: Final = (str, int, float, bool, type(None))
_MOST_LEAVES: Final = 10_000
_KEPT_BITS: Final = 33
"""Of the 52 after the point of a norm: sums that were added up in another order are equal in them."""


def state_fields(
    guard: Guard,
    /,
    *,
    optimizer: Any = None,
    scheduler: Any = None,
    model: Any = None,
    scaler: Any = None,
    **parts: Any,
) -> dict[str, Any]:
    """Return the numbers of what was given, and hashes of the random generators; a GPU's are tensors of one value.

    Each may be several, in a list or by name, but the scaler. `parts` are further ones, such as an average of the
    weights or a buffer; what is a plain value already stays. What cannot be read is left out, and counted by the guard.
    """
    fields: dict[str, Any] = {}
    torch = sys.modules.get("torch")
    with guard.catch("hashing the state of the random generators"):
        fields |= _rng_fields(torch)
    with guard.catch("reading the state of a scheduler"):
        fields |= _scheduler_fields(scheduler)
    if torch is None or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
        # What is launched while a graph is captured becomes part of it.
        return fields | {name: value for name, value in parts.items() if isinstance(value, _PLAIN)}
    with torch.no_grad():
        optimizers: list[Any] = []
        with guard.catch("reading the state of an optimizer"):
            optimizers += [one for one in map(_inside, _each(optimizer)) if one is not None]
            fields |= _optimizer_fields(torch, optimizers)
            # Each by itself as well: what a second one lost would hide in the numbers of all.
            for called, one in _apart(optimizer):
                own = _optimizer_fields(torch, [inside for inside in [_inside(one)] if inside is not None])
                fields |= {f"{name}_{called}": own[name] for name in own}
        with guard.catch("reading the weights of a model"):
            weights = list(_weights(model, optimizers))
            kinds = sorted({_dtype(one.dtype) for one in weights})
            fields |= {"weights_norm": _norm(torch, weights), "weights_dtype": ", ".join(kinds) or None}
            fields["buffers_norm"] = _norm(torch, _buffers(model))
            for called, one in _apart(model):
                fields[f"weights_norm_{called}"] = _norm(torch, _weights(one, ()))
                fields[f"buffers_norm_{called}"] = _norm(torch, _buffers(one))
        with guard.catch("reading the precision of autocast"):
            # Where this is called within its block; integrations say it by `precision`.
            can_tell = hasattr(torch, "get_autocast_dtype")
            for kind in ("cpu", "cuda") if can_tell else ():
                if torch.is_autocast_enabled(kind):
                    fields["autocast_dtype"] = _dtype(torch.get_autocast_dtype(kind))
        with guard.catch("reading the scale of a gradient scaler"):
            fields["scaler_scale"] = _scale(scaler)
        for name, part in parts.items():
            with guard.catch("reading a part of the state"):
                fields |= _part_fields(torch, name, part)
    return {name: value for name, value in fields.items() if value is not None}


def _optimizer_fields(torch: Any, optimizers: Sequence[Any]) -> dict[str, Any]:
    groups = [group for one in optimizers for group in one.param_groups]
    if not groups:
        return {}
    # By the order of the parameters; `get`, since the usual state is a mapping that makes what it is asked for.
    found = [
        one.state.get(param) for one in optimizers for group in one.param_groups for param in group["params"]
    ]
    states = [state for state in found if isinstance(state, Mapping) and state]
    fields: dict[str, Any] = {"optimizer_states": len(states), "optimizer_lr": groups[0].get("lr")}
    steps = [state["step"] for state in states if "step" in state]
    steps += [group[name] for group in groups for name in ("step", "k") if name in group]
    if steps:
        fields["optimizer_step"] = _whole(torch, steps[0])
    for name, keys in _MOMENTS.items():
        moments = (next((state[key] for key in keys if key in state), None) for state in states)
        fields[name] = _norm(torch, moments)
    if not states:
        fields |= _fresh(groups[0])
    return fields


def _fresh(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of an optimizer that has made no step yet and will keep moments."""
    if "betas" in group:
        return {"optimizer_step": 0, "moment1_norm": 0.0, "moment2_norm": 0.0}
    return {"moment1_norm": 0.0} if group.get("momentum") else {}


def _scheduler_fields(scheduler: Any) -> dict[str, Any]:
    outer = next(iter(_each(scheduler)), None)
    if outer is None:
        return {}
    inner = getattr(outer, "scheduler", outer)
    rates: Sequence[Any] = outer.get_last_lr() if hasattr(outer, "get_last_lr") else ()
    rate = {"scheduler_lr": rates[0]} if rates else {}
    return {"scheduler_step": getattr(inner, "last_epoch", None), **rate}


def _scale(scaler: Any) -> Any:
    if scaler is None or not getattr(scaler, "is_enabled", lambda: True)():
        return None
    # Not `get_scale`, which waits for the GPU. The tensor is made with the first loss that is scaled.
    scale = getattr(scaler, "_scale", None)
    return scale if scale is not None else getattr(scaler, "_init_scale", None)


def _weights(model: Any, optimizers: Sequence[Any]) -> Iterable[Any]:
    """Return the weights that are trained: the others are the same in every checkpoint."""
    weights = [weight for one in _each(model) for weight in one.parameters()]
    if weights:
        return [weight for weight in weights if weight.requires_grad] or weights
    return [param for one in optimizers for group in one.param_groups for param in group["params"]]


def _dtype(kind: Any) -> str:
    return str(kind).removeprefix("torch.")


def _buffers(model: Any) -> Iterable[Any]:
    """Return the statistics that no optimizer changes, such as those of batch norm."""
    return (one for each in _each(model) for one in each.buffers() if one.is_floating_point())


def _part_fields(torch: Any, name: str, part: Any) -> dict[str, Any]:
    """Return the norm of the tensors in a part of the state, and a hash of its other values."""
    if isinstance(part, _PLAIN) or (isinstance(part, torch.Tensor) and part.numel() == 1):
        return {name: part}
    values = list(islice(_leaves(torch, part), _MOST_LEAVES))
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    others = [value for value in values if isinstance(value, _PLAIN)]
    found = {f"{name}_hash": _hash(repr(others).encode())} if others else {}
    norm = _norm(torch, tensors)
    # One that is empty was lost: without a number it would look as if it had not been recorded.
    return found | {f"{name}_norm": 0.0 if norm is None and not others else norm}


def _leaves(torch: Any, part: Any) -> Iterator[Any]:
    if isinstance(part, torch.nn.Module):
        yield from (*part.parameters(), *part.buffers())
    elif isinstance(part, Mapping):
        yield from (leaf for value in part.values() for leaf in _leaves(torch, value))
    elif isinstance(part, (list, tuple, deque)):
        yield from (leaf for value in part for leaf in _leaves(torch, value))
    elif hasattr(part, "state_dict"):
        yield from _leaves(torch, part.state_dict())
    else:
        yield part


def _rng_fields(torch: Any) -> dict[str, str]:
    states: dict[str, bytes] = {}
    random, of_numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    if torch is not None:
        states["torch"] = _bytes(torch.get_rng_state())
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            # In host memory: a seed and a count.
            states["cuda"] = _bytes(torch.cuda.get_rng_state())
    if of_numpy is not None:
        # A mapping, in which the numbers of the usual generator are an array.
        state = of_numpy.get_state(legacy=False)
        inner = [value.tolist() if hasattr(value, "tolist") else value for value in state["state"].values()]
        states["numpy"] = repr({**state, "state": inner}).encode()
    if random is not None:
        states["python"] = repr(random.getstate()).encode()
    hashes = {f"rng_{name}": _hash(state) for name, state in states.items()}
    return {"rng_hash": _hash("".join(hashes.values()).encode()), **hashes}


def _bytes(state: Any) -> bytes:
    # Not by numpy, which torch can do without.
    return ctypes.string_at(state.data_ptr(), state.numel())


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _norm(torch: Any, given: Iterable[Any]) -> Any:
    """Return the norm of some values spread over the tensors, as a tensor on their device; None without any."""
    tensors = list(given)
    # The last is among them: tensors of two kinds in turn, as those of LoRA, are both met.
    spread = sorted({(len(tensors) - 1) * at // (_TENSORS - 1) for at in range(_TENSORS)}) if tensors else []
    # A rank may hold nothing of those.
    chosen = _usable(torch, [tensors[at] for at in spread]) or _usable(torch, tensors)[:_TENSORS]
    if not chosen:
        return None
    # Apple's GPUs have no doubles.
    precise = torch.float32 if chosen[0].device.type == "mps" else torch.float64
    parts = [_spread(one).to(precise).reshape(-1) for one in chosen]
    # Of whole numbers, such as labels, the order counts: a norm alone is the same in every order.
    parts = [
        part if one.is_floating_point() else part * torch.arange(1, len(part) + 1, device=part.device)
        for one, part in zip(chosen, parts, strict=True)
    ]
    norm = torch.cat(parts).square().sum().sqrt()
    if precise is torch.float32:
        return norm
    cut = 1 << (52 - _KEPT_BITS)
    return ((norm.view(torch.int64) + cut // 2) & -cut).view(torch.float64)


def _usable(torch: Any, given: Iterable[Any]) -> list[Any]:
    """Return the tensors that this process holds values of, on the device of the first."""
    is_lazy = torch.nn.parameter.is_lazy
    local = [_local(one).detach() for one in given if isinstance(one, torch.Tensor) and not is_lazy(one)]
    found = [
        one
        for one in local
        if one.numel() and one.layout is torch.strided and not (one.is_complex() or one.is_meta)
    ]
    return [one for one in found if one.device == found[0].device]


def _spread(tensor: Any) -> Any:
    """Return a view of at most `_VALUES` values in equal distances, the same ones whatever the memory's layout."""
    shape, room = tensor.shape, _VALUES
    cuts = [slice(None)] * len(shape)
    for done, axis in enumerate(sorted(range(len(shape)), key=shape.__getitem__)):
        # A little more: the root of a cube may be a hair too small.
        wanted = max(1, int(room ** (1.0 / (len(shape) - done)) + 1e-9))
        every = -(-shape[axis] // wanted)
        cuts[axis] = slice(None, None, every)
        room //= -(-shape[axis] // every)
    return tensor[tuple(cuts)]


def _local(tensor: Any) -> Any:
    """Return what this process holds of a tensor that is spread over several."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _whole(torch: Any, step: Any) -> Any:
    if not isinstance(step, torch.Tensor):
        return int(step)
    step = _local(step).detach()
    return int(step) if step.device.type == "cpu" else step.to(torch.int64)


def _each(given: Any) -> Iterator[Any]:
    if isinstance(given, (list, tuple)):
        yield from given
    elif isinstance(given, dict):
        yield from given.values()
    elif given is not None:
        yield given


def _apart(given: Any) -> Iterator[tuple[Any, Any]]:
    """Yield those that have numbers of their own: all that have a name, else the second and further ones."""
    if isinstance(given, dict):
        yield from given.items()
    else:
        yield from enumerate(islice(_each(given), 1, None), 2)


def _inside(optimizer: Any) -> Any:
    """Return the object of a wrapped optimizer that shows a state and groups; None where none does."""
    for _ in range(4):
        if isinstance(getattr(optimizer, "state", None), Mapping) and hasattr(optimizer, "param_groups"):
            return optimizer
        optimizer = getattr(optimizer, "optimizer", None)
    return None
