"""Values that are NaN or infinite: of the loss, of gradients, of evaluations, and of metrics of the caller's own."""

from __future__ import annotations

import math

from tests.diagnostics.synthetic_runs import curve, detect, run_of
from tests.diagnostics.what_is_said import Saying, contract_of, put
from toolkit.telemetry.runfolder.codec import decode, encode

NAN = math.nan


def at(places, value=NAN, of=None):
    """Return losses, or what they are taken from, with a value at these places."""
    values = [*curve(1, records=60)] if of is None else [*of]
    for place in places:
        values[place] = value
    return values


def norms(places, value=math.inf):
    return at(places, value, of=[1.0] * 60)


def logged(losses=None, **others):
    return run_of(curve(1, records=60) if losses is None else losses, **others)


def own_metric(bad):
    """A run in which a metric of the caller's own is NaN at some places."""
    return [
        {**record, "accuracy": None if place in bad else 0.5}
        | ({"non_finite": {"accuracy": "NaN"}} if place in bad else {})
        for place, record in enumerate(logged())
    ]


def named(non_finite):
    return [{**record, "accuracy": None, "non_finite": non_finite} for record in logged()]


CRITICAL = {"severity": "critical", "state": "open"}
LATER = range(30, 60)
SAID = {
    **{
        f"{value} of several metrics is one incident": (
            logged(at(LATER, value), grad_norm=norms(LATER, value), val_loss=at(LATER, value)),
            {
                **CRITICAL,
                "start_step": 31,
                "noticed_step": 31,
                "count": 30,
                "metric": "train_loss",
                "repeats": 0,
            },
        )
        for value in (NAN, math.inf, -math.inf)
    },
    "from the first record": (
        logged([NAN] * 60),
        {"start_step": 1, "message": Saying("from the first record on (60 records)")},
    ),
    "it is over when three numbers have come": (
        logged(at(range(30, 35))),
        {"state": "resolved", "end_step": 35, "resolved_step": 38, "count": 5},
    ),
    "with a number now and then": (
        logged(at([30, 31, 33, 35, 36, 38, 41])),
        {"start_step": 31, "end_step": 42, "count": 7, "repeats": 0},
    ),
    "one infinite gradient norm": (
        logged(grad_norm=norms([30])),
        {
            "severity": "info",
            "state": "resolved",
            "resolved_step": 32,
            "message": Saying("finds its range"),
        },
    ),
    "three infinite gradient norms in a row": (
        logged(grad_norm=norms([30, 31, 32]))[:33],
        {"severity": "critical", "message": Saying(without=["finds its range"])},
    ),
    "a gradient norm that is NaN": (logged(grad_norm=norms([30], NAN)), {"severity": "critical"}),
    "a loss of exactly 0 next to a NaN gradient": (
        logged(at(LATER, 0.0), grad_norm=norms(LATER, NAN)),
        {"severity": "critical", "metric": "train_loss", "message": Saying("hides")},
    ),
    "a metric of the caller's own": (
        own_metric(LATER),
        {
            "severity": "warning",
            "metric": "accuracy",
            "state": "open",
            "count": 30,
            "message": "accuracy is NaN or infinite from step 31 on (30 records).",
        },
    ),
    "one of the caller's own that is back, and again": (
        own_metric([10, 11, 30, 50]),
        {
            "state": "resolved",
            "count": 4,
            "repeats": 2,
            "start_step": 11,
            "end_step": 51,
            "resolved_step": 54,
        },
    ),
    "an epoch's mean is not reported again": (
        [
            *logged(at(range(30, 34))),
            {"event": "epoch", "global_step": 60, "train_loss": None, "non_finite": {"train_loss": "NaN"}},
        ],
        {"count": 4},
    ),
    "in two sessions": (
        [
            record
            for session in (1, 2)
            for record in ({"event": "start", "session": session}, *logged(at(LATER)))
        ],
        [{"session": 1, "state": "resolved"}, {"session": 2, "state": "open"}],
    ),
    "a validation loss, once": (
        logged(val_loss=put(put(put([None] * 60, 9, [1.0]), 19, [NAN]), 29, [0.9])),
        {"metric": "val_loss", "start_step": 20, "resolved_step": 30},
    ),
}
SILENT = {f"an invalid map: {odd}": named(odd) for odd in (None, 3, "NaN", ["train_loss"], {"accuracy": 7})}

test_findings_have_these_facts, test_nothing_is_found = contract_of("nan", SAID, SILENT)


def test_bare_values_and_those_named_under_non_finite_are_the_same():
    bare = logged(at(range(30, 40)), grad_norm=norms(range(32, 40)))
    written = [decode(encode(record)) for record in bare]

    assert written[30]["train_loss"] is None
    assert detect(written, "nan") == detect(bare, "nan") != []


def test_at_most_twenty_other_metrics_are_reported():
    names = [f"metric_{number}" for number in range(50)]
    records = [
        {**record, **dict.fromkeys(names), "non_finite": dict.fromkeys(names, "NaN")}
        for record in logged()[:5]
    ]

    assert len(detect(records, "nan")) == 20
