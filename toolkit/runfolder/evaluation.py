"""The last and the best value of one evaluation metric, as run.json has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.runfolder.metric_meaning import Direction
from toolkit.runfolder.untrusted import finite_in, whole_in

MAX_EVALUATIONS: Final = 200
"""Further metrics are left out: run.json is written every few seconds."""
MAX_NAME_CHARS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a run has reached in one metric."""

    last: float
    """NaN and infinity included."""
    last_step: int | None = None
    best: float | None = None
    """The best finite value; None without one, or if neither direction is better."""
    best_step: int | None = None
    direction: Direction | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it for run.json; a value that is not finite is null there."""
        return {
            "last": self.last if math.isfinite(self.last) else None,
            "last_step": self.last_step,
            "best": self.best,
            "best_step": self.best_step,
            "direction": self.direction,
        }


def evaluations_from(mapping: Any) -> dict[str, Evaluation]:
    """Return the evaluations in a run.json; invalid ones are left out."""
    if not isinstance(mapping, Mapping):
        return {}
    found: dict[str, Evaluation] = {}
    for name, item in mapping.items():
        if len(found) >= MAX_EVALUATIONS:
            break
        if isinstance(name, str) and len(name) <= MAX_NAME_CHARS and isinstance(item, Mapping):
            last, best = finite_in(item.get("last")), finite_in(item.get("best"))
            direction = item.get("direction")
            found[name] = Evaluation(
                last=math.nan if last is None else last,
                last_step=whole_in(item.get("last_step")),
                best=best,
                best_step=whole_in(item.get("best_step")),
                direction=direction if direction in ("min", "max") else None,
            )
    return found
