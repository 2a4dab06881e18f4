"""How far the training is, on the console: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Protocol

from torch import Tensor
from tqdm import tqdm


class Progress(Protocol):
    """Shows steps as they are done; a context manager."""

    def __enter__(self) -> Progress: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...

    def step_done(self, step: int, loss: Tensor, lr: float) -> None:
        """Show that `step` is done; the loss is read from the device only when it is shown."""

    def say(self, line: str) -> None:
        """Print a line without breaking the bar."""


def open_progress(*, start: int, steps: int, read_every: int) -> Progress:
    """Return a bar where the output is a terminal, else lines."""
    if sys.stdout.isatty():
        return _Bar(start=start, steps=steps, read_every=read_every)
    return _Lines(steps=steps)


class _Bar:
    def __init__(self, *, start: int, steps: int, read_every: int) -> None:
        self._read_every = read_every
        self._start = start
        self._bar = tqdm(total=steps, initial=start, unit="step", dynamic_ncols=True, file=sys.stdout)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._bar.close()

    def step_done(self, step: int, loss: Tensor, lr: float) -> None:
        if step % self._read_every == 0 or step == self._start + 1:
            self._bar.set_postfix_str(f"loss {loss.item():.4f}, lr {lr:.1e}", refresh=False)
        self._bar.update()

    def say(self, line: str) -> None:
        self._bar.write(line, file=sys.stdout)


class _Lines:
    _EVERY_S = 10.0

    def __init__(self, *, steps: int) -> None:
        self._steps = steps
        self._first: tuple[int, float] | None = None
        self._said_at = 0.0

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        sys.stdout.flush()

    def step_done(self, step: int, loss: Tensor, lr: float) -> None:
        now = time.monotonic()
        if self._first is not None and now - self._said_at < self._EVERY_S and step != self._steps:
            return
        self._said_at = now
        share = f"{step}/{self._steps} ({step / self._steps:.0%})"
        self.say(f"[run] step {share}  loss {loss.item():.4f}  lr {lr:.1e}{self._time_left(step, now)}")

    def _time_left(self, step: int, now: float) -> str:
        # Measured from the first step on: what came before it was validation and samples.
        if self._first is None:
            self._first = (step, now)
            return ""
        first_step, began = self._first
        minutes, seconds = divmod(round((now - began) / (step - first_step) * (self._steps - step)), 60)
        return f"  ETA {minutes}:{seconds:02d}"

    def say(self, line: str) -> None:
        print(line, flush=True)
