"""A state record of a model with 124 million parameters and AdamW: milliseconds of the caller, bytes, and syncs.

On a GPU if there is one, else on the CPU: `python3 -m benchmarks.state_cost`. On a GPU each call is made while the GPU
is busy, and torch reports whatever waits for it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.command import Options, run_alone, say
from benchmarks.report import Claim, Report
from toolkit.telemetry import TelemetryLogger

_LIMIT_MS = 20.0


def build(options: Options) -> Report:
    """Measure the calls, and compare the records of a state with those of the same state loaded again."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    say(f"state records on {device}")
    model, optimizer = _trained(torch, device, width=96 if options.quick else 768)
    parameters = sum(weight.numel() for weight in model.parameters())
    before = torch.get_rng_state(), [weight.detach().clone() for weight in model.parameters()]
    wall_ms: list[float] = []
    cpu_ms: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        log = TelemetryLogger("state", log_dir=folder, system=False, csv=False, quiet=True)
        log.log_start()
        for step in range(5 if options.quick else 30):
            if device == "cuda":
                # Longer than a call takes: what waits for it is seen.
                torch.cuda._sleep(200_000_000)  # noqa: SLF001 - torch has no other call that only keeps a GPU busy
                torch.cuda.set_sync_debug_mode("error" if step else "default")
            wall, cpu = time.perf_counter(), time.thread_time()
            log.state("save", step, model=model, optimizer=optimizer, checkpoint=f"step-{step}")
            wall_ms.append(1e3 * (time.perf_counter() - wall))
            cpu_ms.append(1e3 * (time.thread_time() - cpu))
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
                torch.cuda.synchronize()
        changed = not torch.equal(torch.get_rng_state(), before[0]) or not all(
            torch.equal(weight, old) for weight, old in zip(model.parameters(), before[1], strict=True)
        )
        other, fresh = _trained(torch, device, width=96 if options.quick else 768, steps=0)
        other.load_state_dict(model.state_dict())
        fresh.load_state_dict(optimizer.state_dict())
        log.state("load", 0, model=other, optimizer=fresh)
        log.close()
        assert log.run_folder is not None
        lines = (Path(log.run_folder) / "metrics.jsonl").read_bytes().splitlines()
    written = [line for line in lines if line.startswith(b'{"event":"state"')]
    numbers = [
        {
            name: record.get(name)
            for name in ("optimizer_step", "moment1_norm", "moment2_norm", "weights_norm")
        }
        for record in map(json.loads, written)
    ]
    is_same = all(one == numbers[0] and None not in one.values() for one in numbers)
    figures: dict[str, Any] = {
        "parameters": parameters,
        "device": device,
        "first_ms": wall_ms[0],
        "wall_ms": statistics.median(wall_ms[1:]),
        "cpu_ms": statistics.median(cpu_ms[1:]),
        "bytes": statistics.median(map(len, written)),
        "failures": log.guard.total,
        "same_after_load": is_same,
        "changed": changed,
    }
    return Report(
        name="state_cost",
        title=f"A state record, {parameters / 1e6:.0f} million parameters with AdamW on {device}",
        columns=["first ms", "then ms", "of them processor", "bytes", "failures", "same after a load"],
        rows=[
            [
                f"{wall_ms[0]:.1f}",
                f"{figures['wall_ms']:.2f}",
                f"{figures['cpu_ms']:.2f}",
                f"{figures['bytes']:.0f}",
                str(figures["failures"]),
                str(is_same),
            ]
        ],
        figures=figures,
        claims=[
            Claim(text="a call", measured=figures["cpu_ms"], limit=_LIMIT_MS, unit=" ms"),
            Claim(text="calls that failed or waited", measured=log.guard.total, limit=0, unit=""),
            Claim(
                text="states that were changed, or read differently",
                measured=changed + (not is_same),
                limit=0,
                unit="",
            ),
        ],
        notes=[f"{name}: {count}" for name, count in log.guard.counts.items()],
    )


def _trained(torch: Any, device: str, *, width: int, steps: int = 1) -> tuple[Any, Any]:
    layers = [torch.nn.TransformerEncoderLayer(width, 12, 4 * width) for _ in range(12)]
    model = torch.nn.Sequential(torch.nn.Embedding(50_257, width), *layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "cuda")
    for _ in range(steps):
        for weight in model.parameters():
            weight.grad = torch.randn_like(weight)
        optimizer.step()
    return model, optimizer


if __name__ == "__main__":
    run_alone(build)
