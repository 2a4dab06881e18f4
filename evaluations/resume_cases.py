"""Which resumes there are to judge: by trainer, seed, and what is wrong with each."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from toolkit.telemetry.diagnostics.resume.judge import CODE, DATA, NOT_RECORDED, STATE

PLAIN, PARTS = "plain", "parts"
"""Scripts: with what most trainings have, and with parts that few have."""
CAUSES: Final = {
    "optimizer_lost": "optimizer state lost",
    "schedule_restarted": "schedule restarted",
    "data_from_start": "data from the start",
    "data_skipped": "data skipped",
    "rng": "random numbers not restored",
    "scaler_lost": "loss scaler lost",
    "batch_size": "batch size changed",
    "wrong_checkpoint": "wrong checkpoint",
    "code_or_config": "other code or settings",
}
RIGHT: Final = {
    "exact": "right, to the last digit",
    "small_noise": "right, gradients with noise of 1e-6",
    "large_noise": "right, gradients with noise of 0.003 to 0.1",
    "eval_interval": "right, other evaluation interval",
    "warmup_in_settings": "right, a second warm-up in the settings",
    "earlier_checkpoint": "right, from an earlier checkpoint",
    "no_overlap": "right, no step done twice",
    "log_every_10": "right, every 10th step logged",
    "seed_in_settings": "right, another seed in the settings",
}
"""Right resumes; all but the first look like broken ones in some way."""
UNLISTED: Final = {
    "labels": ("shifted by one", "of another class", "of another row"),
    "vocabulary": ("in another order", "reversed", "moved by one"),
    "data content": ("other text", "capitals", "without spaces"),
    "ema": ("begun again", "taken from the weights"),
    "batch norm": ("reset",),
    "second optimizer": ("lost", "of no use"),
    "replay buffer": ("empty", "in another order", "with other rows"),
    "precision": ("autocast", "gradients", "weights"),
    "code": ("another activation", "another loss", "another average"),
}
"""Breakages that the judge has no name for, each in some ways."""
TUNED_ON: Final = range(5)
HELD_OUT: Final = range(5, 10)
UNSEEN: Final = range(4, 24)
"""Seeds of unlisted breakages: the first four were looked at while the judge was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run of two sessions."""

    name: str
    trainer: str
    seed: int
    truth: str
    """`same`, or the cause of the break."""
    kind: str
    """The cause, or which right resume it is."""
    how: str
    """What was changed, where there are several ways."""
    noise: float
    log_every: int
    overlap: int
    """Steps that were done twice."""
    saved_at: int
    resumed_at: int

    @property
    def folder(self) -> str:
        """The run folder, from the folder of all cases."""
        return f"{self.name}/logs/run"

    @property
    def accumulation(self) -> int:
        """The batches of a step."""
        return 2 if self.seed % 5 == 2 else 1

    @property
    def says_all(self) -> bool:
        """Whether its script gives all parts of its state to the logger, or only those that scripts usually do."""
        return self.seed // 2 % 2 == 0

    @property
    def area(self) -> str:
        """What kind of thing an unlisted breakage is, as far as its run recorded it."""
        parts = {"ema": self.says_all, "second optimizer": self.says_all, "replay buffer": self.says_all}
        parts |= {"batch norm": True, "precision": self.how == "weights"}
        other = {"data content": DATA, "code": CODE}
        return STATE if parts.get(self.kind) else other.get(self.kind, NOT_RECORDED)


def cases(seeds: Iterable[int]) -> list[Case]:
    """Return a case of each breakage and each right resume, by seed."""
    kinds = (*CAUSES, *RIGHT)
    return [case_of(PLAIN, seed, number, kind) for seed in seeds for number, kind in enumerate(kinds)]


def unlisted(seeds: Iterable[int]) -> list[Case]:
    """Return a case of each unlisted breakage, and of two right resumes of the same script, by seed."""
    kinds = (*UNLISTED, "exact", "small_noise")
    return [case_of(PARTS, seed, number, kind) for seed in seeds for number, kind in enumerate(kinds)]


def case_of(trainer: str, seed: int, number: int, kind: str) -> Case:
    """Return one case; the seed also decides how it is logged and whether steps were done twice."""
    chance = random.Random(f"{trainer} {seed} {kind}")
    broken = kind not in RIGHT
    every = chance.choice([7, 8, 9, 10, 11])
    log_every, overlap = 1, chance.randint(7, 12)
    if kind == "log_every_10" or (broken and seed % 5 == 3):
        log_every, overlap = 10, chance.randint(20, 24)
    if kind == "no_overlap" or (broken and seed % 5 == 4):
        overlap = 0
    noise = 10 ** chance.uniform(-6, -4) if seed % 2 else 0.0
    noise = {"exact": 0.0, "small_noise": 1e-6, "large_noise": 10 ** chance.uniform(-2.5, -1)}.get(
        kind, noise
    )
    if trainer == PARTS:
        noise = 1e-6 if kind == "small_noise" else 0.0
    ways = {
        "data_from_start": ["of the training", "of the epoch"],
        "data_skipped": ["as many again", "what the killed session had used"],
        "batch_size": ["batch size doubled", "batch size halved", "accumulation doubled"],
        "wrong_checkpoint": ["weights of an earlier step", "of another run"],
        "code_or_config": ["a setting", "a line of code"],
    }.get(kind, UNLISTED.get(kind, [""]))
    return Case(
        name=f"{trainer}-{seed}-{number:02}",
        trainer=trainer,
        seed=seed,
        truth=kind if broken else "same",
        kind=kind,
        how=ways[seed % len(ways)],
        noise=noise,
        log_every=log_every,
        overlap=overlap,
        saved_at=2 * every,
        resumed_at=every if kind == "earlier_checkpoint" else 2 * every,
    )
