"""Reward hacking and the collapse of a policy, injected into runs as trl logs them."""

from __future__ import annotations

import random

import pytest

from tests.diagnostics.synthetic_runs import detect


def rl_run(seed=0, *, records=400, kl=None, length=None, entropy=None, reward=None, names=None):
    """Return a healthy run of GRPO: reward up, KL up steadily, entropy down to a fifth; each can be replaced."""
    dice = random.Random(seed)
    names = {
        "reward": "reward",
        "kl": "kl",
        "length": "completions/mean_length",
        "entropy": "entropy",
        **(names or {}),
    }
    found = []
    for step in range(records):
        part = step / records
        values = {
            "reward": reward(part) if reward else 0.2 + 0.6 * part,
            "kl": kl(part) if kl else 0.001 + 0.08 * part,
            "length": length(part) if length else 200.0 + 150.0 * part,
            "entropy": entropy(part) if entropy else 0.6 * (1.0 - 0.8 * part),
        }
        noisy = {names[name]: value * dice.lognormvariate(0.0, 0.15) for name, value in values.items()}
        found.append({"event": "step", "global_step": step, "loss": dice.gauss(0.0, 0.01), **noisy})
    return found


def explodes(part):
    return 0.02 + 0.02 * part + (2.0 ** ((part - 0.6) * 25) if part > 0.6 else 0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("names", [{}, {"reward": "objective/scores", "kl": "objective/kl"}])
def test_a_reward_that_rises_while_the_policy_leaves_its_reference_is_a_warning(seed, names):
    (finding,) = detect(rl_run(seed, kl=explodes, names=names), "reward_hacking")

    assert finding.severity == "warning"
    assert finding.metric == names.get("kl", "kl")
    assert 230 <= finding.start_step <= 260
    assert finding.noticed_step <= finding.start_step + 20
    assert finding.is_open


def test_completions_that_explode_are_only_info():
    (finding,) = detect(rl_run(length=lambda part: 200.0 if part < 0.6 else 900.0), "reward_hacking")

    assert finding.severity == "info"
    assert finding.metric == "completions/mean_length"


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"kl": lambda part: 0.5 * part},
        {"kl": lambda part: 0.5 * part * part},
        {"kl": explodes, "reward": lambda part: 0.8 - 0.6 * part},
        {"kl": lambda part: explodes(part) / 100_000},
        {"records": 40, "kl": explodes},
    ],
    ids=["healthy", "straight", "square", "reward falls", "tiny", "short"],
)
def test_a_divergence_that_grows_steadily_or_without_a_reward_is_not_hacking(run):
    assert detect(rl_run(**run), "reward_hacking") == []


def test_a_divergence_that_comes_back_is_resolved():
    records = rl_run(records=600, kl=lambda part: 1.0 if 0.5 < part < 0.6 else 0.03)

    (finding,) = detect(records, "reward_hacking")

    assert not finding.is_open


@pytest.mark.parametrize("name", ["entropy", "policy/entropy", "objective/entropy"])
def test_an_entropy_that_is_gone_is_a_warning(name):
    records = rl_run(entropy=lambda part: 0.6 if part < 0.5 else 0.001, names={"entropy": name})

    (finding,) = detect(records, "policy_collapse")

    assert finding.severity == "warning"
    assert finding.metric == name
    assert finding.start_step == 200
    assert finding.noticed_step == 219


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"entropy": lambda part: 0.6 if part < 0.5 else 0.06},
        {"entropy": lambda part: 0.6 if part < 0.5 else -0.5},
        {"entropy": lambda part: 0.6 if part < 0.5 else 0.001, "names": {"reward": "mine"}},
        {"records": 15, "entropy": lambda part: 0.6 if part < 0.5 else 0.0},
    ],
    ids=["healthy", "a tenth", "continuous", "supervised", "short"],
)
def test_an_entropy_that_falls_as_usual_is_no_collapse(run):
    assert detect(rl_run(**run), "policy_collapse") == []
