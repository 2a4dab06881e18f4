"""Sample pictures: paint the prompts, write them as PNG files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from toolkit.trainer.config import SampleOptions
from toolkit.trainer.flow import Velocity, paint
from toolkit.trainer.prompts import encode_prompt
from toolkit.trainer.seeds import derived_generator
from toolkit.trainer.shapes import IMAGE_SIZE


class Sampler:
    """Paints the configured prompts from the same noise each time, so that pictures of different steps compare."""

    def __init__(self, options: SampleOptions, *, trigger_word: str | None, device: torch.device) -> None:
        self._options = options
        self.prompts = tuple(prompt.replace("[trigger]", trigger_word or "") for prompt in options.prompts)
        self._numbers = torch.tensor([encode_prompt(prompt, trigger_word) for prompt in options.prompts])
        self._numbers = self._numbers.to(device)
        seeds = [options.seed + (place if options.walk_seed else 0) for place in range(len(self.prompts))]
        noise = [
            torch.randn(3, IMAGE_SIZE, IMAGE_SIZE, generator=derived_generator(seed, "sample"))
            for seed in seeds
        ]
        self._noise = torch.stack(noise).to(device) if noise else torch.empty(0)

    def paint(self, model: Velocity) -> Tensor:
        """Return one picture per prompt, with values from -1 to 1."""
        return paint(
            model,
            self._noise,
            self._numbers,
            steps=self._options.sample_steps,
            guidance_scale=self._options.guidance_scale,
        )

    def write(self, pictures: Tensor, folder: Path, step: int) -> Iterator[tuple[str, Path]]:
        """Write each picture under a unique name; yield its prompt and path.

        The pictures have the read permissions of the folder that `folder` is in.

        Raises:
            OSError: the folder cannot be written to.
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        readers = folder.parent.stat().st_mode
        folder.mkdir(mode=readers & 0o777, exist_ok=True)
        stamp_ms = int(time.time() * 1000)
        pixels = ((pictures + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()
        side = IMAGE_SIZE * self._options.scale
        for place, prompt in enumerate(self.prompts):
            path = folder / f"{stamp_ms}__{step:09d}_{place}.png"
            picture = Image.fromarray(pixels[place]).resize((side, side), Image.Resampling.NEAREST)
            with os.fdopen(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, readers & 0o666), "wb"
            ) as file:
                picture.save(file, format="PNG")
            yield prompt, path
