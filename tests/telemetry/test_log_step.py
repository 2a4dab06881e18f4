"""`log_step` as it is written out does what it says in plain words."""

from __future__ import annotations

import inspect
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.records.folded_metrics import MOST_OWN
from toolkit.telemetry.logger.records.step_gate import StepGate
from toolkit.telemetry.logger.steps.log_step import FIELDS, StepTarget
from toolkit.telemetry.testing import ManualClock


class Seen:
    """Stands in for a logger and its step records, and notes what reaches them."""

    def __init__(self, is_live):
        self.calls = []
        gate = StepGate()
        gate.last_step, gate.due_at, gate.low, gate.high = 3, 10, -5.0, 5.0
        self._steps = StepTarget(self if is_live else None, gate, clock=ManualClock(), began=0.0)

    def take(self, *given):
        self.calls.append(given)

    def _take_unusual(self, *given):
        self.calls.append(("unusual", *given))

    def _takes_step(self, *given):
        self.calls.append(("asked", *given))
        return False

    def state(self):
        gate = self._steps.gate
        return repr((self.calls, gate.last_step, gate.losses, gate.rows))


def log_step_plainly(self, global_step, train_loss, nan_inf_detected, scalars, **fields):
    """Fold a step, or hand it to the step records."""
    target = self._steps
    gate = target.gate
    if target.is_special and not self._takes_step(global_step, scalars):
        return
    if (
        type(global_step) is int
        and gate.last_step < global_step < gate.due_at
        and (train_loss is None or (type(train_loss) is float and gate.low < train_loss < gate.high))
        and (nan_inf_detected is None or nan_inf_detected is False)
        # Plain numbers alone are kept: a tensor would keep its graph.
        and all(value is None or type(value) in (float, int) for value in fields.values())
        and (len(scalars) <= MOST_OWN and set(map(type, scalars.values())) <= {float, int})
    ):
        gate.last_step = global_step
        if train_loss is not None:
            gate.losses.append(train_loss)
        if train_loss is None or scalars or any(value is not None for value in fields.values()):
            # An empty dictionary of each step would be as large as its row.
            gate.rows.append((*fields.values(), scalars or None))
        return
    record = {
        "time": target.clock.wall(),
        "elapsed": target.clock.monotonic() - target.began,
        # Known once it is written; here, so that it is not the last field of a line.
        "seq": 0,
        "global_step": global_step,
        "nan_inf_detected": False if nan_inf_detected is None else nan_inf_detected,
    }
    given = {"train_loss": train_loss, **fields}
    record |= {name: value for name, value in given.items() if value is not None}
    if global_step is None or dict in (type(global_step), type(train_loss)):
        self._take_unusual(global_step, record, scalars)
    elif target.records is not None:
        target.records.take(global_step, train_loss, record, scalars)


numbers = st.sampled_from([0.5, 1, -7.5, math.nan, True, np.float32(0.5), "text", {"a": 1}, [2.0]])
steps = st.sampled_from([2, 4, 9, 10, None, 5.0, True, {"a": 1}])


@given(
    step=steps,
    loss=st.none() | numbers,
    flag=st.sampled_from([None, False, True]),
    fields=st.one_of(
        st.dictionaries(st.sampled_from(FIELDS), st.sampled_from([0.5, 3])),
        st.dictionaries(st.sampled_from(FIELDS), numbers),
        st.just(dict.fromkeys(FIELDS, 0.25)),
    ),
    scalars=st.dictionaries(
        st.sampled_from(["mine", "metrics", "step"]), st.sampled_from([0.5, 2]) | numbers
    ),
    is_live=st.booleans(),
)
def test_it_is_what_the_plain_version_says(step, loss, flag, fields, scalars, is_live):
    written_out, plain = Seen(is_live), Seen(is_live)
    TelemetryLogger.log_step(written_out, step, loss, nan_inf_detected=flag, **fields, **scalars)
    log_step_plainly(plain, step, loss, flag, dict(scalars), **{**dict.fromkeys(FIELDS), **fields})

    assert written_out.state() == plain.state()


def test_the_signature_has_the_fields_of_the_list_in_its_order():
    names = list(inspect.signature(TelemetryLogger.log_step).parameters)

    assert names == ["self", "global_step", "train_loss", *FIELDS, "nan_inf_detected", "scalars"]
    assert inspect.signature(TelemetryLogger.log_step, follow_wrapped=False).parameters.keys() == set(names)
