"""Where the main thread of a rank is: at which line of the script, and whether it waits in a collective."""

from __future__ import annotations

import linecache
import re
import sys
import threading
import time
from types import FrameType
from typing import Any, Final

from toolkit.telemetry.core.background import frames_of_threads
from toolkit.telemetry.logger.errors.stack import is_of_script, path_shower, walk_frame
from toolkit.telemetry.privacy.masking import mask_secrets

_C10D: Final = "torch.distributed.distributed_c10d"
_IN_COLLECTIVE: Final = (_C10D, "torch.distributed.c10d_logger", "torch.distributed._functional_collectives")
_MAY_WAIT: Final = re.compile(r"\.(wait|item|tolist|cpu|numpy|synchronize)\(")
"""Calls that wait for a collective on a device or in the background, if there is one."""
_MOST_TENSORS: Final = 4
_MOST_GROUPS: Final = 64


def where_rank_is() -> dict[str, Any]:
    """Return where the main thread of this rank is; empty without a process group of torch's.

    `line` is the script's own, `collective` what it waits in or may wait in, which `is_sure` says, and `tensors` what
    that was called with. `groups` has how many collectives of each process group this rank has begun.
    """
    c10d = sys.modules.get(_C10D)
    if c10d is None or not c10d.is_initialized() or c10d.get_world_size() < 2:
        return {}
    frames = [frame for frame, _ in walk_frame(frames_of_threads().get(threading.main_thread().ident or 0))]
    if not frames:
        return {}
    own = next((frame for frame in reversed(frames) if is_of_script(frame.f_code.co_filename)), frames[-1])
    place = f"{path_shower()(own.f_code.co_filename)}:{own.f_lineno} in {own.f_code.co_name}"
    collective, is_sure, tensors = _collective(frames)
    return {
        "line": mask_secrets([place])[0],
        "collective": collective,
        "is_sure": is_sure,
        "tensors": tensors,
        "groups": _groups(c10d),
    }


def processor_s() -> float | None:
    """Return the processor time that the main thread has used so far; None where the system does not say."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    main = threading.main_thread()
    if clock_of is None or main.ident is None or not main.is_alive():
        return None
    return time.clock_gettime(clock_of(main.ident))


def _collective(frames: list[FrameType]) -> tuple[str, bool, list[str]]:
    modules = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    if modules[-1] in _IN_COLLECTIVE:
        first = len(modules)
        while first and modules[first - 1] in _IN_COLLECTIVE:
            first -= 1
        # The function that the script called; others wrap it or are called by it.
        inside = list(zip(frames[first:], modules[first:], strict=True))
        called = next((frame for frame, module in inside if module == _C10D), frames[-1])
        return called.f_code.co_name, True, _tensors(called)
    if modules[-1].startswith("torch.autograd"):
        # The gradients are exchanged in it, and computed.
        return "backward", False, []
    last = frames[-1]
    line = linecache.getline(last.f_code.co_filename, last.f_lineno or 0, last.f_globals)
    found = _MAY_WAIT.search(line)
    if found is not None:
        return found[1], False, []
    is_device = modules[-1].startswith(("torch.cuda", "torch.distributed"))
    return (last.f_code.co_name if is_device else ""), False, []


def _tensors(frame: FrameType) -> list[str]:
    """Return types and shapes of what a collective was called with."""
    # A rank in a collective has imported torch; an import here could wait for what hangs.
    tensor = sys.modules["torch"].Tensor
    values = [each for each in frame.f_locals.values() if isinstance(each, tensor)]
    return [f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in values[:_MOST_TENSORS]]


def _groups(c10d: Any) -> dict[str, int]:
    found = {}
    # torch has no other list of them.
    for group in list(getattr(getattr(c10d, "_world", None), "pg_map", ()))[:_MOST_GROUPS]:
        try:
            found[str(group.group_name)] = int(group._get_sequence_number_for_group())  # noqa: SLF001
        except (RuntimeError, AttributeError):
            # Not every backend counts.
            continue
    return found
