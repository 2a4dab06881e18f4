"""Questions and answers that TRL's trainers learn from, and the arguments of a few steps."""

from __future__ import annotations

QUESTION = [{"role": "user", "content": "what colour is the sky"}]
RIGHT = [{"role": "assistant", "content": "the sky is blue"}]
WRONG = [{"role": "assistant", "content": "the sky is green"}]
OTHER = [{"role": "user", "content": "what is the colour"}]


def arguments(folder, kind, **others):
    """Return the arguments of four steps of two examples."""
    return kind(
        **{
            "output_dir": str(folder / "out"),
            "per_device_train_batch_size": 2,
            "per_device_eval_batch_size": 2,
            "max_steps": 4,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            "bf16": False,
            "dataloader_pin_memory": False,
            "gradient_checkpointing": False,
            **others,
        }
    )
