from __future__ import annotations

import pytest

from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.reports.config_change import change_for

AI_TOOLKIT = {
    "config": {"process": [{"train": {"lr": "4e-4", "steps": 2000}, "datasets": [{"num_workers": 0}]}]}
}


def finding(kind, *, state="open", repeats=0, metric="train_loss", severity="critical", **evidence):
    return Finding(
        id=kind,
        kind=kind,
        severity=severity,
        metric=metric,
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


GRPO = {"learning_rate": 1e-5, "beta": 0.04, "ent_coef": 0.0, "shuffle": False, "fp16": True}


@pytest.mark.parametrize(
    ("found", "changed"),
    [
        (finding("reward_hacking", metric="objective/kl"), {"-beta: 0.04", "+beta: 0.08"}),
        (finding("reward_hacking", metric="completions/mean_length"), set()),
        (
            finding("policy_collapse", metric="entropy"),
            {"-ent_coef: 0.0", "+ent_coef: 0.01", "-learning_rate: 1.0e-05", "+learning_rate: 5.0e-06"},
        ),
        (finding("lr_too_small"), {"-learning_rate: 1.0e-05", "+learning_rate: 0.0001"}),
        (finding("lr_too_small", severity="info"), set()),
        (finding("data_repeated", alike_pct=90.0), {"-shuffle: false", "+shuffle: true"}),
        (finding("data_repeated", fell_pct=30.0), set()),
        (finding("underflow"), {"-fp16: true", "+fp16: false", "+bf16: true"}),
        (finding("label_leak"), set()),
        (finding("dead_lora"), set()),
    ],
)
def test_what_a_run_that_learns_the_wrong_thing_should_change(found, changed):
    change = change_for(GRPO, [found])

    lines = [line for line in change.diff.splitlines() if not line.startswith(("---", "+++"))]
    assert {line for line in lines if line[:1] in "+-"} == changed


@pytest.mark.parametrize("kind", ["reward_hacking", "policy_collapse", "data_repeated", "underflow"])
def test_a_setting_that_is_not_there_is_not_invented(kind):
    assert change_for({"name": "run", "shuffle": True}, [finding(kind, metric="kl")]).diff == ""


def test_a_rate_far_too_small_becomes_one_that_moves():
    change = change_for({"lr": 1e-9}, [finding("lr_too_small")])

    assert "+lr: 1.0e-06" in change.diff


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
