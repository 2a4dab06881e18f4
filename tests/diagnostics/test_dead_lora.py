from __future__ import annotations

import pytest

from tests.diagnostics.synthetic_runs import curve, detect, run_of


def adapter(norms, lr=1e-4):
    return run_of(curve(1)[: len(norms)], lr=[lr] * len(norms), lora_B_grad_norm=norms)


def test_an_adapter_without_gradients_from_the_start_is_a_warning():
    (finding,) = detect(adapter([0.0] * 100), "dead_lora")

    assert (finding.severity, finding.start_step, finding.noticed_step, finding.count) == (
        "warning",
        1,
        20,
        100,
    )
    assert finding.metric == "lora_B_grad_norm"


def test_an_adapter_that_stops_learning_is_reported_as_such():
    (finding,) = detect(adapter([0.1] * 50 + [0.0] * 50), "dead_lora")

    assert finding.start_step == 51
    assert "was not before" in finding.message


def test_it_is_resolved_by_the_first_gradient():
    (finding,) = detect(adapter([0.0] * 50 + [0.1] * 5), "dead_lora")

    assert (finding.is_open, finding.resolved_step) == (False, 51)


@pytest.mark.parametrize(
    "records",
    [
        adapter([0.1] * 100),
        adapter([0.0, 0.1] * 50),
        adapter([0.0] * 19),
        adapter([0.0] * 100, lr=0.0),
        run_of(curve(1)),
    ],
    ids=["healthy", "now and then", "short", "no rate", "no adapter"],
)
def test_other_adapters_are_not_dead(records):
    assert detect(records, "dead_lora") == []
