"""`log_step`, written out from the list of its fields when it is imported, as `dataclasses` does it.

A step without a record takes about a microsecond that way; with a loop over the fields it takes several.
`tests/telemetry/test_log_step.py` says in plain words what is written out, and compares the two.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from toolkit.telemetry.core.clock import Clock, SystemClock
from toolkit.telemetry.logger.records.folded_metrics import COLUMNS, MOST_OWN
from toolkit.telemetry.logger.records.step_gate import StepGate

if TYPE_CHECKING:
    from toolkit.telemetry.logger.steps.step_records import StepRecords

_F = TypeVar("_F", bound=Callable[..., Any])

FIELDS: Final = COLUMNS
"""The well-known fields of a step besides its loss: parameters of `log_step`, in this order."""


class Ranks(Protocol):
    """Several ranks that do what is requested at the same step."""

    def at_step(self, step: Any) -> None:
        """Do what was agreed for `step`."""


class StepTarget:
    """Where the steps of a logger go: to the records of its run, or nowhere if it is off or follows other ranks."""

    __slots__ = ("began", "clock", "gate", "is_special", "ranks", "records")

    def __init__(
        self,
        records: StepRecords | None = None,
        gate: StepGate | None = None,
        *,
        clock: Clock | None = None,
        began: float = 0.0,
        ranks: Ranks | None = None,
    ) -> None:
        self.records = records
        self.gate = gate or StepGate()
        self.clock = clock or SystemClock()
        self.began = began
        self.ranks = ranks
        self.is_special = ranks is not None or records is None
        """False for a live logger of a single rank, so that its steps need one look at this object."""


NOWHERE: Final = StepTarget()


_SOURCE: Final = """\
def log_step(self, /, global_step=None, train_loss=None, {parameters}, nan_inf_detected=None, **scalars):
    target = self._steps
    gate = target.gate
    if target.is_special and not self._takes_step(global_step, scalars):
        return
    if (
        type(global_step) is int
        and gate.last_step < global_step < gate.due_at
        and (train_loss is None or (type(train_loss) is float and gate.low < train_loss < gate.high))
        and (nan_inf_detected is None or nan_inf_detected is False)
    ):
        if {none_given} and not scalars and train_loss is not None:
            gate.last_step = global_step
            gate.losses.append(train_loss)
            return
        if {all_plain} and (not scalars or (len(scalars) <= MOST_OWN and _are_plain(scalars))):
            gate.last_step = global_step
            if train_loss is not None:
                gate.losses.append(train_loss)
            gate.rows.append(({names}, scalars or None))
            return
    clock = target.clock
    # In one piece if possible: a dictionary that has to grow costs more.
    if train_loss is not None and {all_given}:
        record = {{{envelope}, "train_loss": train_loss, {items}}}
    else:
        record = {{{envelope}}}
        if train_loss is not None:
            record["train_loss"] = train_loss
{additions}
    if global_step is None or issubclass(type(global_step), dict) or issubclass(type(train_loss), dict):
        self._take_unusual(global_step, record, scalars)
    else:
        target.records.take(global_step, train_loss, record, scalars)
"""
_ENVELOPE: Final = (
    '"time": clock.wall(), "elapsed": clock.monotonic() - target.began, "seq": 0, "global_step": global_step, '
    '"nan_inf_detected": False if nan_inf_detected is None else nan_inf_detected'
)


def written_out(declared: _F) -> _F:
    """Return `log_step` written out for `FIELDS`, with the signature and the documentation of `declared`."""
    source = _SOURCE.format(
        parameters=", ".join(f"{name}=None" for name in FIELDS),
        names=", ".join(FIELDS),
        none_given=" and ".join(f"{name} is None" for name in FIELDS),
        all_given=" and ".join(f"{name} is not None" for name in FIELDS),
        all_plain=" and ".join(
            f"({name} is None or type({name}) is float or type({name}) is int)" for name in FIELDS
        ),
        items=", ".join(f'"{name}": {name}' for name in FIELDS),
        additions="\n".join(
            f'        if {name} is not None:\n            record["{name}"] = {name}' for name in FIELDS
        ),
        envelope=_ENVELOPE,
    )
    # In this folder, so that its frames count as ours; its lines are shown in a traceback.
    file = f"{__file__}:log_step"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"MOST_OWN": MOST_OWN, "_are_plain": _are_plain}
    exec(compile(source, file, "exec"), namespace)  # noqa: S102 - a constant text and names of our own
    update_wrapper(namespace["log_step"], declared)
    return namespace["log_step"]  # type: ignore[no-any-return]  # as declared


def _are_plain(scalars: Mapping[str, Any]) -> bool:
    # A loop, because a set of the types would cost twice as much for a few scalars.
    for value in scalars.values():  # noqa: SIM110
        if type(value) is not float and type(value) is not int:
            return False
    return True
