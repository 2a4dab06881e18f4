"""Trains the example LoRA with something really wrong: `python broken_training.py KIND LOG_DIR`.

Only the configuration and the data are spoilt; the trainer, its losses and its logger are the real ones.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from toolkit.telemetry.cli.main import main
from toolkit.telemetry.trainer import loop

_EXAMPLE = Path(__file__).parents[2] / "config" / "examples" / "train_lora_tiny_cpu_with_telemetry.yaml"


def spoil_batches(spoil: Callable[[int, torch.Tensor], torch.Tensor]) -> None:
    """Let `spoil(step, pictures)` stand for the pictures of each batch from now on."""
    plain = loop.batch_of

    def batch(given: Any, number: int, size: int, seed: int) -> Any:
        good = plain(given, number, size, seed)
        return good._replace(pictures=spoil(number + 1, good.pictures))

    loop.batch_of = batch  # that is the fault


def break_nan(process: dict[str, Any]) -> None:
    """One picture that cannot be read as numbers."""
    spoil_batches(lambda step, pictures: pictures * math.nan if step == 60 else pictures)


def break_spike(process: dict[str, Any]) -> None:
    """A few batches whose pictures were scaled wrongly."""
    spoil_batches(lambda step, pictures: pictures * 5.0 if 60 <= step < 66 else pictures)


def break_divergence(process: dict[str, Any]) -> None:
    """A warm-up that goes far beyond what the model bears."""
    process["train"].update(lr=0.06, warmup=120, lr_scheduler="constant")
    loop._MAX_GRAD_NORM = 100.0


def break_plateau(process: dict[str, Any]) -> None:
    """A learning rate that moves nothing; the seed is one whose noise does not look like a slope for a while."""
    process["train"].update(lr=1e-12, warmup=0, lr_scheduler="constant", seed=1, steps=4000)
    process["train"].update(validate_every=0, num_images=2048)


def break_overfit(process: dict[str, Any]) -> None:
    """A large adapter on four pictures."""
    process["train"].update(lr=8e-3, warmup=10, lr_scheduler="constant")
    process["network"].update(linear=64, linear_alpha=64)
    process["train"].update(num_images=4)


BROKEN = {
    "nan": break_nan,
    "spike": break_spike,
    "divergence": break_divergence,
    "plateau": break_plateau,
    "overfit": break_overfit,
}


def train(kind: str, log_dir: Path) -> int:
    """Train with this fault into `log_dir`; return the trainer's exit code."""
    torch.set_num_threads(1)
    config = yaml.safe_load(_EXAMPLE.read_text(encoding="utf-8"))
    config["config"]["name"] = kind
    process = config["config"]["process"][0]
    process["training_folder"] = str(log_dir / ".output")
    process["telemetry"].update(log_dir=str(log_dir), log_every=1)
    process["sample"].update(sample_every=0, prompts=[])
    process["train"].update(batch_size=4, steps=2000, save_every=10_000, validate_every=10)
    BROKEN[kind](process)
    written = log_dir / f".{kind}.yaml"
    written.write_text(yaml.safe_dump(config), encoding="utf-8")
    return main(["train", str(written)])


if __name__ == "__main__":
    sys.exit(train(sys.argv[1], Path(sys.argv[2])))
