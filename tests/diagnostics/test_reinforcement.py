"""Reward hacking and the collapse of a policy, injected into runs as trl logs them."""

from __future__ import annotations

import random

from tests.diagnostics.what_is_said import Between, Seeds, contract_of

NAMES = {"reward": "reward", "kl": "kl", "length": "completions/mean_length", "entropy": "entropy"}


def rl_run(seed=0, *, records=400, kl=None, length=None, entropy=None, reward=None, names=None):
    """Return a healthy run of GRPO: reward up, KL up steadily, entropy down to a fifth; each can be replaced."""
    dice = random.Random(seed)
    names = {**NAMES, **(names or {})}
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


def from_half(value):
    return lambda part: 0.6 if part < 0.5 else value


test_a_reward_that_is_not_earned_is_named, test_a_reward_that_is_earned_is_not = contract_of(
    "reward_hacking",
    {
        **{
            f"the policy leaves its reference, as {kl}": (
                Seeds(lambda seed, names=names: rl_run(seed, kl=explodes, names=names), 3, 3),
                {
                    "severity": "warning",
                    "metric": kl,
                    "start_step": Between(230, 260),
                    "noticed_step": Between(230, 280),
                    "state": "open",
                },
            )
            for kl, names in (
                ("kl", {}),
                ("objective/kl", {"reward": "objective/scores", "kl": "objective/kl"}),
            )
        },
        "completions that explode": (
            rl_run(length=lambda part: 200.0 if part < 0.6 else 900.0),
            {"severity": "info", "metric": "completions/mean_length"},
        ),
        "a divergence that comes back": (
            rl_run(records=600, kl=lambda part: 1.0 if 0.5 < part < 0.6 else 0.03),
            {"state": "resolved"},
        ),
    },
    {
        "healthy": rl_run(),
        "straight": rl_run(kl=lambda part: 0.5 * part),
        "square": rl_run(kl=lambda part: 0.5 * part * part),
        "reward falls": rl_run(kl=explodes, reward=lambda part: 0.8 - 0.6 * part),
        "tiny": rl_run(kl=lambda part: explodes(part) / 100_000),
        "short": rl_run(records=40, kl=explodes),
    },
)
test_an_entropy_that_is_gone_is_named, test_an_entropy_that_falls_as_usual_is_not = contract_of(
    "policy_collapse",
    {
        f"an entropy that is gone, as {name}": (
            rl_run(entropy=from_half(0.001), names={"entropy": name}),
            {"severity": "warning", "metric": name, "start_step": 200, "noticed_step": 219},
        )
        for name in ("entropy", "policy/entropy", "objective/entropy")
    },
    {
        "healthy": rl_run(),
        "a tenth": rl_run(entropy=from_half(0.06)),
        "continuous": rl_run(entropy=from_half(-0.5)),
        "supervised": rl_run(entropy=from_half(0.001), names={"reward": "mine"}),
        "short": rl_run(records=15, entropy=from_half(0.0)),
    },
)
