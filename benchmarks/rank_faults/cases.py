"""Which runs are made: faults, ranks, the step of the fault, and the kinds of run in which they happen."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

NO_FAULT: Final = "none"
FAULTS: Final = (
    *("killed", "stopped", "slow by 10 %", "slow by 30 %", "slow by 100 %", "slow disk", "slow data loader"),
    *("NaN", "other code", "other data", "node dies"),
)
SLOW_BY: Final = {"slow by 10 %": 0.1, "slow by 30 %": 0.3, "slow by 100 %": 1.0}
FROM_START: Final = ("other code", "other data")
"""Faults that a rank has from its first step on."""
ENDS_IT: Final = ("killed", "stopped", "node dies")
STYLES: Final = ("plain", "rank 0 saves", "long tail", "pairs")
"""What is no fault: rank 0 alone saves and evaluates, batches that take long now and then, and ranks in pairs that get
the same batches, as where a model is split over two."""
WORLDS: Final = (4, 8)
OF_EACH: Final = 20
WITHOUT: Final = 60
STEPS: Final = 380


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    name: str
    fault: str
    world: int
    ranks: tuple[int, ...]
    """Those that have the fault."""
    step: int
    """From which step on."""
    seed: int
    variant: int
    style: str
    waits: bool
    """Whether the others wait when a rank is gone, as under NCCL; else their exchange fails, as under gloo."""
    steps: int = STEPS
    slow_by: float = 0.0
    on_node: int = 0
    """Ranks on each node; 0 where all are on this machine."""

    def host(self, rank: int) -> str | None:
        """Return the host name of a rank's node; None for this machine's own."""
        return f"node{rank // self.on_node}" if self.on_node else None


def cases(of_each: int = OF_EACH, without: int = WITHOUT) -> list[Case]:
    """Return all runs, mixed so that those of any first part are of all kinds."""
    found = []
    for fault in (NO_FAULT, *FAULTS):
        for number in range(without if fault == NO_FAULT else of_each):
            found.append(((number + 0.5) / (without if fault == NO_FAULT else of_each), _case(fault, number)))
    return [case for _, case in sorted(found, key=lambda each: each[0])]


def _case(fault: str, number: int) -> Case:
    draw = random.Random(f"{fault} {number}")
    world = WORLDS[number % 2]
    ranks: tuple[int, ...] = (draw.randrange(world),)
    variant = number // 2 % 2
    on_node = 4 if world == 8 and variant else 2
    if fault == "node dies":
        first = on_node * (0 if number % 10 == 9 else draw.randrange(1, world // on_node))
        ranks = tuple(range(first, first + on_node))
    if fault == NO_FAULT:
        ranks = ()
    style = STYLES[number % 4 if fault == NO_FAULT else draw.randrange(3)]
    if fault == "slow disk":
        # Where rank 0 alone saves, its disk is not one rank's fault to tell.
        style = "plain" if style == "rank 0 saves" else style
    return Case(
        name=f"{fault} {number}".replace(" ", "-").replace("%", "percent"),
        fault=fault,
        world=world,
        ranks=ranks,
        step=1 if fault in FROM_START else draw.randrange(90, 140),
        seed=draw.randrange(1, 10_000),
        variant=variant,
        style=style,
        waits=fault in ENDS_IT and variant == 1,
        slow_by=SLOW_BY.get(fault, 0.0),
        on_node=on_node if fault == "node dies" else 0,
    )
