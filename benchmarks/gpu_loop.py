"""Two loops on a CUDA GPU, with and without us: does the difference exceed the loop's own noise?

In the first the GPU is busy, as in a LoRA training. In the second it waits for Python to launch many small kernels, so
that whatever takes the interpreter makes a step longer.

Needs torch, orjson and a GPU: `python3 -m benchmarks.gpu_loop`. TensorBoard and W&B are measured if installed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import contenders
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import VALUES, Logger
from benchmarks.report import Report, no_slower, slowdown, slowdown_cells

if TYPE_CHECKING:
    import torch

TITLE = "Two loops on a GPU, loss and grad_norm logged every step"
OURS: Final = "TelemetryLogger, GPU tensors"
BUSY: Final = "LoRA, the GPU is busy"
NOTHING: Final = "no logging"
AGAIN: Final = "no logging, again"
LAUNCHES: Final = "many small kernels"
_LOGGED: Final = {
    OURS: (contenders.OURS, False),
    "orjson + write, .item()": (contenders.BARE, True),
    "TensorBoard, .item()": (contenders.TENSORBOARD, True),
    "W&B offline, .item()": (contenders.WANDB, True),
}
"""The logger of each variant, and whether the script waits for the numbers, as it has to."""
_LOOPS: Final = {BUSY: (4096, 8192), LAUNCHES: (64, 16)}
"""The width of the layers and the tokens of a batch."""
_STEP_MS = 10.0

Step = Callable[[], "tuple[torch.Tensor, torch.Tensor]"]
Log = Callable[[int, "torch.Tensor", "torch.Tensor"], None]


def build(options: Options) -> Report:
    """Measure the loop bare, with us, and with `.item()` logging, in alternating blocks of one process."""
    import torch

    if not torch.cuda.is_available():
        notes = ["Not measured: there is no CUDA GPU here."]
        return Report(name="gpu_loop", title=TITLE, columns=[], rows=[], figures={}, notes=notes)
    # Short blocks: the clock of the GPU and the machine around it drift within a second.
    rounds, steps = (6, 10) if options.quick else (100, 10)
    blocks: dict[str, dict[str, list[float]]] = {}
    for loop, (width, tokens) in _LOOPS.items():
        with tempfile.TemporaryDirectory() as name:
            say(f"gpu: calibrating the loop: {loop}")
            step = _lora_step(width, tokens)
            with _variants(Path(name)) as variants:
                say(f"gpu: {rounds} rounds of {steps} steps, {len(variants)} ways")
                blocks[loop] = _alternate(step, variants, rounds, steps)
    return _report(blocks, torch.cuda.get_device_name(), steps)


def _lora_step(width: int, tokens: int) -> Step:
    """Return a training step of frozen layers with low-rank adapters that takes about 10 ms."""
    import torch

    torch.manual_seed(0)
    device, dtype, rank = "cuda", torch.bfloat16, 16

    class LoraLinear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = torch.nn.Linear(width, width, device=device, dtype=dtype).requires_grad_(False)
            self.down = torch.nn.Linear(width, rank, bias=False, device=device, dtype=dtype)
            self.up = torch.nn.Linear(rank, width, bias=False, device=device, dtype=dtype)
            torch.nn.init.zeros_(self.up.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.nn.functional.gelu(self.base(x) + self.up(self.down(x)))

    def step_of(depth: int) -> Step:
        model = torch.nn.Sequential(*(LoraLinear() for _ in range(depth)))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
        batch, target = (torch.randn(tokens, width, device=device, dtype=dtype) for _ in range(2))

        def step() -> tuple[torch.Tensor, torch.Tensor]:
            loss = torch.nn.functional.mse_loss(model(batch).float(), target.float())
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach(), norm

        return step

    depth = 8
    trial = step_of(depth)
    _block(trial, None, 0, 20)
    return step_of(max(4, round(depth * _STEP_MS / (_block(trial, None, 0, 20) * 1e3))))


@contextmanager
def _variants(folder: Path) -> Iterator[dict[str, Log | None]]:
    """Open a logger for each variant that is installed; `None` logs nothing."""
    VALUES.clear()
    VALUES["lr"] = 1e-4
    found: dict[str, Log | None] = {NOTHING: None, AGAIN: None}
    with ExitStack() as closing:
        for number, (name, (contender, waits)) in enumerate(_LOGGED.items()):
            if not contender.missing:
                place = folder / str(number)
                place.mkdir()
                logger = contender.open(place)
                closing.callback(logger.close)
                found[name] = partial(_log, logger, waits)
        yield found


def _log(logger: Logger, waits: bool, step: int, loss: torch.Tensor, norm: torch.Tensor) -> None:
    VALUES["train_loss"] = loss.item() if waits else loss
    VALUES["grad_norm"] = norm.item() if waits else norm
    logger.log(step)


def _alternate(
    step: Step, variants: dict[str, Log | None], rounds: int, steps: int
) -> dict[str, list[float]]:
    """Return the seconds per step of each block: one block per variant and round, in alternating order."""
    blocks: dict[str, list[float]] = {name: [] for name in variants}
    first = count(0, steps)
    for number in range(rounds + 1):
        for name in variants if number % 2 else reversed(variants):
            took = _block(step, variants[name], next(first), steps)
            # The first round warms up.
            blocks[name] += [took] if number else []
    return blocks


def _block(step: Step, log: Log | None, first: int, steps: int) -> float:
    import torch

    torch.cuda.synchronize()
    before = time.perf_counter()
    for number in range(first, first + steps):
        loss, norm = step()
        if log is not None:
            log(number, loss, norm)
    torch.cuda.synchronize()
    return (time.perf_counter() - before) / steps


def _report(blocks: dict[str, dict[str, list[float]]], device: str, steps: int) -> Report:
    figures: dict[str, Any] = {"device": device, "loops": {}}
    rows, claims = [], []
    for loop, variants in blocks.items():
        found = figures["loops"][loop] = {
            name: {
                "step_ms": statistics.median(times) * 1e3,
                **slowdown([mine / bare - 1 for mine, bare in zip(times, variants[NOTHING], strict=True)]),
            }
            for name, times in variants.items()
        }
        rows += [
            [loop, name, f"{one['step_ms']:.2f}", *slowdown_cells(one)]
            for name, one in found.items()
            if name != NOTHING
        ]
        claims.append(no_slower(f"{loop}: slowdown with us", found[OURS], found[AGAIN]))
    return Report(
        name="gpu_loop",
        title=f"{TITLE} ({device}; {len(blocks[BUSY][NOTHING])} blocks of {steps} steps each)",
        columns=["loop", "logging", "ms per step", "slowdown", "quartiles"],
        rows=rows,
        figures=figures,
        claims=claims,
    )


if __name__ == "__main__":
    run_alone(build)
