"""What a log of the Trainer's is of: a step, an evaluation or the whole training; and what in it is a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Final

_OF_EVERY_LOG: Final = frozenset({"epoch", "num_input_tokens_seen", "step"})
"""What the Trainer adds to each log."""
_TIMES: Final = ("_runtime", "_samples_per_second")
"""How the times of an evaluation are named, whatever its prefix; a step's log may have the first as `train_runtime`."""


def is_of_the_whole_training(logs: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a log is the summary at the very end; `history` is the Trainer's, to which it was added."""
    if "loss" in logs or "train_runtime" not in logs:
        return False
    # An evaluation on the training data may have the same names, but counts no operations. The Trainer's own printing
    # takes their number out of the log, though not out of the history.
    return "total_flos" in logs or bool(history and "total_flos" in history[-1])


def is_of_an_evaluation(logs: Mapping[str, Any]) -> bool:
    """Return whether a log is an evaluation's, whatever prefix it was given."""
    if "loss" in logs:
        return False
    own = [name for name in logs if name not in _OF_EVERY_LOG]
    return any(name.endswith(_TIMES) and name != "train_runtime" for name in own) or (
        bool(own) and all(name.startswith("eval_") for name in own)
    )


def says_something(numbers: Mapping[str, Any]) -> bool:
    """Return whether there is anything in a log but what the Trainer adds to each."""
    return not _OF_EVERY_LOG.issuperset(numbers)


def numbers_in(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is a number, or a tensor of one; texts, tables and the like are somebody else's."""
    return {str(name): value for name, value in logs.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, Real) or (hasattr(value, "numel") and bool(value.numel() == 1))
