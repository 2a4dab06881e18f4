"""Which runs are made: faults and hangs, ranks, the step of the fault, and what only takes long."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NO_FAULT: Final = "none"
FAULTS: Final = (
    *("killed", "stopped", "slow by 10 %", "slow by 30 %", "slow by 100 %", "slow disk", "slow data loader"),
    *("NaN", "other code", "other data", "node dies"),
)
HANGS: Final = ("before forward", "data loader", "backward", "other shape")
HELD_OUT: Final = ("other path", "lock", "ends early", "holds the interpreter", "computes for ever")
"""Hangs that the rules were not written with."""
LONG: Final = (
    *("evaluates alone", "evaluates slow data alone", "saves alone in a span", "saves alone", "all pause"),
    *("long batches", "slow first steps", "slow rank", "plain"),
)
"""Runs that take longer than the limit of a hang and do not hang."""
NAMED_BY: Final = {
    **dict.fromkeys(("killed", "node dies"), ("rank_dead", "rank_silent")),
    "stopped": ("rank_silent",),
    **dict.fromkeys(FAULTS[2:7], ("straggler",)),
    "NaN": ("rank_nan",),
    **dict.fromkeys(("other code", "other data"), ("rank_differs",)),
    **dict.fromkeys((*HANGS, *HELD_OUT), ("rank_hung", "rank_dead", "rank_silent")),
}
"""The findings that name a fault."""
SLOW_BY: Final = {"slow by 10 %": 0.1, "slow by 30 %": 0.3, "slow by 100 %": 1.0}
FROM_START: Final = ("other code", "other data")
"""Faults that a rank has from its first step on."""
ENDS_IT: Final = ("killed", "stopped", "node dies")
STYLES: Final = ("plain", "rank 0 saves", "long tail", "pairs")
"""What is no fault: rank 0 alone saves and evaluates, batches that take long now and then, and ranks in pairs that get
the same batches, as where a model is split over two."""
EXCHANGES: Final = ("DDP", "all_reduce", "async", "group")
"""How ranks that hang average their gradients."""
STEPS: Final = 380
HANG_AFTER_S: Final = 4.0
_STEPS_TO_HANG: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    name: str
    fault: str
    world: int
    ranks: tuple[int, ...] = ()
    """Those that have the fault."""
    step: int
    """From which step on."""
    seed: int
    variant: int
    style: str = "plain"
    exchange: str = "DDP"
    waits: bool = False
    """Whether the others wait when a rank is gone, as under NCCL; else their exchange fails, as under gloo."""
    steps: int = STEPS
    slow_by: float = 0.0
    on_node: int = 0
    """Ranks on each node; 0 where all are on this machine."""
    hang_after: float = 0.0
    """The limit of a hang in seconds, in runs that hang or take long; their steps have no spans."""

    def host(self, rank: int) -> str | None:
        """Return the host name of a rank's node; None for this machine's own."""
        return f"node{rank // self.on_node}" if self.on_node else None

    @property
    def may_hang(self) -> bool:
        """Whether the run is made to hang, or to look like it."""
        return bool(self.hang_after)


def cases(kinds: Sequence[str], of_each: int) -> list[Case]:
    """Return `of_each` runs of each kind, mixed so that those of any first part are of all."""
    found = [
        ((number + 0.5) / of_each, (_hang if kind in (*HANGS, *HELD_OUT, *LONG) else _case)(kind, number))
        for kind in kinds
        for number in range(of_each)
    ]
    return [case for _, case in sorted(found, key=lambda each: each[0])]


def _named(kind: str, number: int) -> str:
    return f"{kind} {number}".replace(" ", "-").replace("%", "percent")


def _hang(kind: str, number: int) -> Case:
    draw = random.Random(f"{kind} {number}")
    world = (4, 8)[number % 2]
    rank = draw.randrange(1 if kind == "holds the interpreter" else 0, world)
    exchange = EXCHANGES[number // 2 % len(EXCHANGES)]
    return Case(
        name=_named(kind, number),
        fault=kind,
        world=world,
        ranks=() if kind in LONG else (rank,),
        step=draw.randrange(14, 24),
        seed=rank,
        variant=number // 2 % 2,
        # What ends a collective of DDP's is an exception in the others.
        exchange="all_reduce" if kind in ("other shape", "other path") else exchange,
        waits=kind == "other shape",
        steps=_STEPS_TO_HANG,
        hang_after=HANG_AFTER_S,
    )


def _case(fault: str, number: int) -> Case:
    draw = random.Random(f"{fault} {number}")
    world = (4, 8)[number % 2]
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
        name=_named(fault, number),
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
