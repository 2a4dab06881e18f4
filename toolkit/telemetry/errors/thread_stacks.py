"""Where every thread of the process stands, as Python sees it."""

from __future__ import annotations

import threading
from typing import Any, Final

from toolkit.privacy.masking import mask_secrets
from toolkit.telemetry.errors.frames import frames_of_threads
from toolkit.telemetry.errors.stack import Stack, path_shower, walk_frame

_OURS: Final = "telemetry-"
_MAX_STACKS: Final = 40
_MOST_CHARACTERS: Final = 40_000
"""A record has room for 64 KiB."""


def thread_stacks() -> dict[str, Any]:
    """Return the stacks of all threads but this package's own, innermost frame last; the main thread's comes first.

    Threads that stand at the same place are told of together. What a record has no room for is counted.
    """
    main = threading.main_thread().ident
    named = {thread.ident: thread.name for thread in threading.enumerate()}
    shown = path_shower()
    together: dict[tuple[str, ...], list[str]] = {}
    # One after the other, so that no frame is held on to longer than it takes to read it.
    frames = frames_of_threads()
    names = {ident: named.get(ident, f"thread {ident}") for ident in frames}
    for ident, name in sorted(names.items(), key=lambda item: (item[0] != main, item[1])):
        frame = frames.pop(ident)
        if not name.startswith(_OURS):
            lines = tuple(mask_secrets(Stack(walk_frame(frame)).lines(shown)))
            together.setdefault(lines, []).append(name)
        del frame
    return _that_fit(together)


def _that_fit(together: dict[tuple[str, ...], list[str]]) -> dict[str, Any]:
    stacks: list[dict[str, Any]] = []
    room, left_out = _MOST_CHARACTERS, 0
    for lines, threads in together.items():
        room -= sum(len(line) + 4 for line in lines)
        if len(stacks) >= _MAX_STACKS or (room < 0 and stacks):
            left_out += len(threads)
        else:
            told: dict[str, Any] = {"threads": threads[:_MAX_STACKS], "stack": list(lines)}
            if len(threads) > _MAX_STACKS:
                told["more_threads"] = len(threads) - _MAX_STACKS
            stacks.append(told)
    return {"stacks": stacks, **({"threads_left_out": left_out} if left_out else {})}
