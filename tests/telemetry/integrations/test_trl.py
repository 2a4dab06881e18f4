"""The trainers of TRL, which are Trainers with metrics of their own."""

from __future__ import annotations

import math

import pytest

from tests.lazy_module import LazyModule
from tests.lengths import in_make_faults
from tests.records import read_records
from tests.telemetry.integrations.small_preferences import QUESTION, RIGHT, WRONG, arguments
from tests.telemetry.integrations.tiny_language_model import make_model, make_tokenizer
from tests.telemetry.logged import PATIENCE_S

datasets = LazyModule("datasets")
ours = LazyModule("toolkit.telemetry.integrations.transformers")
peft = LazyModule("peft")
trl = LazyModule("trl")


def telemetry(folder):
    """Return the callback, strict: that it uses the logger wrongly anywhere would end the training."""
    quiet = {"system": False, "csv": False, "close_timeout": PATIENCE_S}
    return ours.TelemetryCallback(log_dir=folder / "logs", log_every=1, strict=True, **quiet)


def train(folder, trainer):
    """Train, and return the records of its run by their kind, and the Trainer's own history of its steps."""
    trainer.train()
    found = {}
    for record in read_records(folder / "logs/out/metrics.jsonl"):
        found.setdefault(record["event"], []).append(record)
    return found, [entry for entry in trainer.state.log_history if "loss" in entry]


def assert_same_metrics(steps, history, *named):
    """Hold every number of the history against the step records, under its own name."""
    assert [step["global_step"] for step in steps] == [1, 2]
    for step, entry in zip(steps, history, strict=True):
        numbers = {name: value for name, value in entry.items() if isinstance(value, (int, float))}
        for name in set(numbers) - {"learning_rate", "step"}:
            if math.isfinite(numbers[name]):
                assert step[name] == pytest.approx(numbers[name], rel=1e-5), name
        assert set(named) <= set(step)


def test_fine_tuning_brings_its_entropy_and_accuracy(tmp_path):
    examples = datasets.Dataset.from_list([{"messages": QUESTION + RIGHT}] * 4)
    trainer = trl.SFTTrainer(
        model=make_model(),
        args=arguments(
            tmp_path, trl.SFTConfig, max_steps=2, max_length=32, eval_strategy="steps", eval_steps=2
        ),
        train_dataset=examples,
        eval_dataset=examples.select(range(2)),
        processing_class=make_tokenizer(),
        callbacks=[telemetry(tmp_path)],
    )
    found, history = train(tmp_path, trainer)

    assert_same_metrics(found["step"], history, "entropy", "mean_token_accuracy", "num_tokens")
    (evaluation,) = found["eval"]
    assert {"eval_loss", "eval_entropy", "eval_mean_token_accuracy"} <= set(evaluation)
    assert found["start"][0]["trainer"] == "SFTTrainer"
    assert found["end"][0]["telemetry_errors"] == 0


@in_make_faults
def test_preferences_bring_their_rewards_and_margins(tmp_path):
    examples = datasets.Dataset.from_list([{"prompt": QUESTION, "chosen": RIGHT, "rejected": WRONG}] * 4)
    trainer = trl.DPOTrainer(
        model=make_model(),
        ref_model=make_model(seed=1),
        args=arguments(tmp_path, trl.DPOConfig, max_steps=2, max_length=32),
        train_dataset=examples,
        processing_class=make_tokenizer(),
        callbacks=[telemetry(tmp_path)],
    )
    found, history = train(tmp_path, trainer)

    assert_same_metrics(
        found["step"], history, "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"
    )
    assert found["end"][0]["telemetry_errors"] == 0


def test_reinforcement_brings_its_reward_divergence_and_lengths(tmp_path):
    def prefer_blue(completions, **_):
        return [float("blue" in completion[0]["content"]) for completion in completions]

    trainer = trl.GRPOTrainer(
        model=make_model(),
        reward_funcs=prefer_blue,
        args=arguments(
            tmp_path, trl.GRPOConfig, max_steps=2, num_generations=2, max_completion_length=6, beta=0.1
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": QUESTION}] * 4),
        processing_class=make_tokenizer(),
        callbacks=[telemetry(tmp_path)],
        # What the divergence is measured from is then the model without the adapter.
        peft_config=peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]),
    )
    found, history = train(tmp_path, trainer)

    assert_same_metrics(
        found["step"],
        history,
        *("reward", "reward_std", "rewards/prefer_blue/mean", "kl", "completions/mean_length"),
    )
    (start,) = found["start"]
    assert (start["lora_rank"], start["lora_alpha"]) == (2, 4)
    assert start["lora_target_modules"] == ["q_proj", "v_proj"]
    assert 0 < start["model_trainable_params"] < start["model_total_params"]
    assert len(found["train_summary"]) == 1
    assert found["end"][0]["telemetry_errors"] == 0
