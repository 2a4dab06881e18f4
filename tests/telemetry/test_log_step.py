"""`log_step` as it is written out does what it says in plain words."""

from __future__ import annotations

import inspect
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.records.step_gate import StepGate
from toolkit.telemetry.steps.log_step import FIELDS, StepTarget, log_step_plainly
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


numbers = st.sampled_from([0.5, 1, -7.5, math.nan, True, np.float32(0.5), "text", {"a": 1}, [2.0]])
steps = st.sampled_from([2, 4, 9, 10, None, 5.0, True])


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
