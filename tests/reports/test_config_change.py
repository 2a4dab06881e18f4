from __future__ import annotations

import pytest

from toolkit.diagnostics.finding import Finding
from toolkit.reports.config_change import change_for

AI_TOOLKIT = {
    "config": {"process": [{"train": {"lr": "4e-4", "steps": 2000}, "datasets": [{"num_workers": 0}]}]}
}


def finding(kind, *, state="open", repeats=0, **evidence):
    return Finding(
        id=kind,
        kind=kind,
        severity="critical",
        metric="train_loss",
        start_step=100,
        end_step=None,
        noticed_step=110,
        state=state,
        repeats=repeats,
        evidence=evidence,
    )


@pytest.mark.parametrize(
    ("found", "changed"),
    [
        (finding("divergence", level=0.1, now=4.0), {"-lr: 4e-4", "+lr: 0.0002", "+max_grad_norm: 1.0"}),
        (
            finding("divergence", first=1.0, level=1.0),
            {"-lr: 4e-4", "+lr: 4.0e-05", "+warmup_steps: 100", "+max_grad_norm: 1.0"},
        ),
        (finding("overfit", best_step=700.0), {"-steps: 2000", "+steps: 700"}),
        (finding("data_starvation", share_pct=60.0), {"-- num_workers: 0", "+- num_workers: 4"}),
        (finding("exploding_grad"), {"+max_grad_norm: 1.0"}),
        (finding("spike", repeats=2), {"+max_grad_norm: 1.0"}),
        (finding("spike", state="resolved"), set()),
        (finding("plateau"), set()),
        (finding("lr_problem", lr=0.0), set()),
    ],
)
def test_only_what_follows_from_the_finding_is_changed(found, changed):
    change = change_for(AI_TOOLKIT, [found])

    lines = [line for line in change.diff.splitlines() if not line.startswith(("---", "+++"))]
    marked = [line[0] + line[1:].strip() for line in lines if line[:1] in "+-"]
    assert set(marked) == changed
    assert bool(change.reasons) == bool(changed)


def test_each_setting_is_changed_once_by_the_worst_finding():
    change = change_for(
        {"lr": 1e-3, "max_grad_norm": 5}, [finding("divergence"), finding("nan"), finding("spike")]
    )

    assert change.diff.count("+lr: 0.0005") == 1
    assert change.diff.count("+max_grad_norm: 1.0") == 1
    assert len(change.reasons) == 2


@pytest.mark.parametrize("config", [None, {}, [], "text", {"lr": None}, {"lr": {"a": 1}}])
def test_a_configuration_that_has_no_such_setting_is_left_alone(config):
    assert change_for(config, [finding("nan")]).diff == ""
