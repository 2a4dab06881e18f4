"""Make the base weights that the repository ships: `python -m benchmarks.pretrain_base`.

The base model learns flat and outlined shapes on paper, from pictures that are drawn as they are needed.
With the defaults it takes three minutes on a fast GPU; on two CPU cores it would take most of a day.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from toolkit.telemetry.trainer.model import (
    ARCHITECTURE,
    BASE_WEIGHTS,
    TinyDiT,
    choose_device,
    flow_loss,
    random_times,
)
from toolkit.telemetry.trainer.pictures import inside, random_drawing
from toolkit.telemetry.trainer.prompts import BASE_STYLES, encode_prompt

_SEED = 20
_UNPROMPTED = 0.1
"""How often the prompt is left out, so that guidance has something to move away from."""
_TRIGGERED = 0.2
"""How often the trigger word is added without a meaning, so that the base model ignores it."""
_DARKER = 0.3
"""How often the paper may have any brightness."""
_AVERAGE_DECAY = 0.998


def main() -> None:
    """Train the base model and write its weights in half precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=BASE_WEIGHTS)
    arguments = parser.parse_args()

    model = pretrain(arguments.steps, choose_device(arguments.device))
    tensors = {
        name: tensor.to("cpu", torch.float16).contiguous() for name, tensor in model.state_dict().items()
    }
    about = {"architecture": ARCHITECTURE, "steps": str(arguments.steps), "seed": str(_SEED), "format": "pt"}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, arguments.output, metadata=about)
    print(f"{arguments.output}: {arguments.output.stat().st_size / 1e6:.2f} MB")


def pretrain(steps: int, device: torch.device, batch_size: int = 384, lr: float = 2e-3) -> TinyDiT:
    """Return a base model after `steps` steps, its weights averaged over the last few hundred."""
    torch.manual_seed(_SEED)
    generator = torch.Generator().manual_seed(_SEED)
    on_device = torch.Generator(device=device).manual_seed(_SEED)
    model = TinyDiT().to(device)
    nn.init.normal_(model.words.weight[1:], std=0.5)  # number 0 is padding and adds nothing
    for silent in (model.modulation, model.modulation_out, model.patch_out):
        nn.init.zeros_(silent.weight)
        nn.init.zeros_(silent.bias)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    began = time.monotonic()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(step / 100, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        picture, prompt = random_batch(batch_size, generator)
        noise = torch.randn(picture.shape, generator=on_device, device=device)
        times = random_times(batch_size, on_device)
        loss = flow_loss(model, picture.to(device), noise, times, prompt.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        decay = min(_AVERAGE_DECAY, step / (step + 10))
        for kept, fresh in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(fresh, 1 - decay)
        if step % 100 == 0:
            print(
                f"step {step}/{steps}  loss {loss.item():.4f}  {time.monotonic() - began:.0f} s", flush=True
            )
    return average


def random_batch(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return `count` pictures in the base styles, and the word numbers of their captions."""
    pictures: list[Tensor] = []
    prompts: list[str] = []
    for number, style in enumerate(BASE_STYLES):
        drawing = random_drawing((count + number) // len(BASE_STYLES), generator)
        paper = torch.rand(len(drawing.captions), generator=generator) * 0.1 + 0.88
        # Some on darker paper: a LoRA that teaches night scenes then has less to teach.
        chance, brightness = (torch.rand(paper.shape, generator=generator) for _ in range(2))
        paper = torch.where(chance < _DARKER, brightness, paper)[:, None, None, None]
        edge = drawing.distance if style == "flat" else drawing.distance.abs() - 0.07
        pictures.append(torch.lerp(paper, drawing.colour, inside(edge)).clamp(0.0, 1.0) * 2.0 - 1.0)
        prompts.extend(f"{caption}, {style}" for caption in drawing.captions)
    captions = []
    for prompt, chance_of in zip(prompts, torch.rand(count, generator=generator).tolist(), strict=True):
        kept = "" if chance_of < _UNPROMPTED else prompt
        captions.append(f"[trigger] {prompt}" if kept and chance_of < _UNPROMPTED + _TRIGGERED else kept)
    return torch.cat(pictures), torch.tensor([encode_prompt(caption) for caption in captions])


if __name__ == "__main__":
    main()
