"""What a fleet has: runs of a size, one with very many ranks, and a list of many thousands."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.large_run import BEGAN, write_finished_run
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.manifest import Evaluation, read_manifest, write_manifest

SLOW_RANK: Final = 617
RANKED: Final = "run-rank"


def _times(step: int) -> dict[str, float]:
    return {"session": 1, "time": BEGAN + step * 0.08, "elapsed": step * 0.08}


def write_ranked_run(log_dir: Path, ranks: int, records: int) -> Path:
    """Write a finished run with a record file for each rank; rank 617 takes a third longer than the others."""
    folder = write_finished_run(log_dir, RANKED, records)
    (folder / "ranks").mkdir()
    draw = random.Random(0)
    for rank in range(1, ranks):
        slow = 1.33 if rank == SLOW_RANK else 1.0
        lines = [
            encode(
                {
                    "event": "step",
                    "seq": step,
                    "rank": rank,
                    **_times(step),
                    "global_step": step,
                    "train_loss": 1.0 / (step + 1),
                    "sec_per_step": 0.08 * slow * draw.uniform(0.97, 1.03),
                }
            )
            for step in range(records)
        ]
        rank_file(folder, rank).write_bytes(b"".join(lines))
    return folder


def write_listed_runs(log_dir: Path, count: int) -> None:
    """Write finished runs with 30 settings, 4 evaluations and 3 records each."""
    draw = random.Random(0)
    for number in range(count):
        folder = write_finished_run(log_dir, f"sweep-{number:04}", 3)
        write_manifest(
            folder,
            replace(
                read_manifest(folder),
                run_id=f"{number:032x}",
                project=("vision", "speech", "language", "robots", "weather")[number % 5],
                tags=tuple(draw.sample(("baseline", "sweep", "final", "ablation"), draw.randrange(3))),
                config={
                    "learning_rate": 10 ** draw.uniform(-5, -2),
                    "optimizer": draw.choice(("adamw", "sgd", "lion", "adamw8bit")),
                    **{f"model.setting_{place:02}": draw.random() for place in range(28)},
                },
                evaluations={
                    name: Evaluation(last=draw.random(), best=draw.random(), direction="min")
                    for name in ("val_loss", "acc", "fid", "reward")
                },
                summary={
                    "epoch": number / 7,
                    "train_loss": draw.random(),
                    "max_steps": 1_000,
                    "samples_per_sec": 12.5,
                },
            ),
        )
