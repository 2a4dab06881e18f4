from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import without_haste
from toolkit.telemetry.diagnostics.finding import OPEN, RESOLVED, SEVERITIES, Finding, finding_from

_steps = st.integers(min_value=0, max_value=2**53 - 1)
_texts = st.lists(st.text(max_size=20), max_size=3).map(tuple)
_findings = st.builds(
    Finding,
    id=st.text(max_size=20),
    kind=st.text(max_size=20),
    severity=st.sampled_from(SEVERITIES),
    metric=st.text(max_size=20),
    start_step=_steps,
    end_step=st.none() | _steps,
    noticed_step=_steps,
    session=st.integers(min_value=1, max_value=99),
    state=st.sampled_from((OPEN, RESOLVED)),
    resolved_step=st.none() | _steps,
    count=st.integers(min_value=1, max_value=10**9),
    repeats=st.integers(min_value=0, max_value=10**9),
    evidence=st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False), max_size=4),
    message=st.text(max_size=40),
    causes=_texts,
    advice=_texts,
    remedies=_texts,
    confidence=st.none() | st.floats(min_value=0.0, max_value=1.0),
)

OURS = Finding(
    id="1-nan-loss-5",
    kind="nan",
    severity="critical",
    metric="loss",
    start_step=5,
    end_step=None,
    noticed_step=5,
).to_fields()


@without_haste
@given(finding=_findings)
def test_a_finding_survives_the_trip_through_a_record(finding):
    record = json.loads(json.dumps(finding.to_fields()))

    assert finding_from(record) == finding


def test_fields_that_may_be_absent_have_their_usual_values():
    needed = ("id", "kind", "severity", "metric", "start_step", "noticed_step", "message", "state")

    found = finding_from({name: OURS[name] for name in needed})

    assert found is not None
    assert (found.count, found.repeats, found.session, found.end_step) == (1, 0, 1, None)
    assert (found.evidence, found.causes, found.advice, found.remedies) == ({}, (), (), ())
    assert found.confidence is None


@pytest.mark.parametrize(
    ("name", "odd", "read"),
    [
        *(("confidence", odd, None) for odd in (-0.1, 1.1, float("nan"), True, "0.9", [0.9], {})),
        *(
            (name, odd, ())
            for name in ("causes", "advice", "remedies")
            for odd in (None, 3, "text", {"a": 1})
        ),
        *(("evidence", odd, {}) for odd in (None, 3, "text", [{"a": 1}])),
        ("evidence", {"level": 2, "peak": "high", "now": None, "ratio": True}, {"level": 2}),
    ],
)
def test_what_a_field_cannot_hold_is_left_out(name, odd, read):
    assert getattr(finding_from({**OURS, name: odd}), name) == read


@pytest.mark.parametrize(
    "change",
    [
        {"id": 3},
        {"kind": None},
        {"severity": "loud"},
        {"severity": None},
        {"severity": ["critical"]},
        {"state": "closed"},
        {"message": None},
        {"start_step": None},
        {"start_step": True},
        {"start_step": 5.0},
        {"noticed_step": "5"},
    ],
)
def test_a_record_with_another_form_is_not_a_finding(change):
    assert finding_from({**OURS, **change}) is None
