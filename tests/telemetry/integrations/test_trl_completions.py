"""TRL's trainers, while tiny models really train: their own metrics, and their completions."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from tests.lazy_module import LazyModule
from tests.lengths import in_make_faults
from tests.records import read_records
from tests.telemetry.integrations.small_preferences import OTHER, QUESTION, RIGHT, WRONG, arguments
from tests.telemetry.integrations.tiny_language_model import make_model, make_tokenizer
from tests.telemetry.logged import PATIENCE_S

datasets = LazyModule("datasets")
ours = LazyModule("toolkit.telemetry.integrations.transformers")
peft = LazyModule("peft")
trl = LazyModule("trl")

PAIRS = [
    {"prompt": QUESTION, "chosen": RIGHT, "rejected": WRONG},
    {"prompt": OTHER, "chosen": WRONG, "rejected": RIGHT},
]
ANSWERS = [
    {"prompt": QUESTION, "completion": RIGHT, "label": True},
    {"prompt": OTHER, "completion": WRONG, "label": False},
    {"prompt": QUESTION, "completion": WRONG, "label": False},
    {"prompt": OTHER, "completion": RIGHT, "label": True},
]


def train(
    folder, make, config, rows, *, interval=2, eval_rows=None, completions=None, phases=False, **others
):
    """Train, and return the completions of the run, all its records, and the Trainer's own history of its steps."""
    callback = ours.TelemetryCallback(
        log_dir=folder / "logs",
        log_every=1,
        system=False,
        csv=False,
        close_timeout=PATIENCE_S,
        diagnostics=False,
        strict=True,
        phases=phases,
        completions=completions if completions is not None else {"interval": interval},
    )
    trainer = make(
        model=make_model(),
        args=config,
        train_dataset=datasets.Dataset.from_list(rows * 4),
        eval_dataset=datasets.Dataset.from_list(eval_rows) if eval_rows else None,
        processing_class=make_tokenizer(),
        callbacks=[callback],
        **others,
    )
    own = {name: vars(trainer.accelerator).get(name) for name in ("gather", "gather_for_metrics")}
    trainer.train()
    records = read_records(folder / "logs/out/metrics.jsonl")
    assert records[-1]["event"] == "end"
    assert records[-1]["telemetry_errors"] == 0, [record for record in records if record["event"] == "error"]
    assert "compute_loss" not in vars(trainer), "the trainer is left as it was"
    assert {name: vars(trainer.accelerator).get(name) for name in own} == own
    found = [record for record in records if record["event"] == "completion"]
    return SimpleNamespace(
        completions=found,
        records=records,
        history=[entry for entry in trainer.state.log_history if "loss" in entry],
        evaluations=[entry for entry in trainer.state.log_history if "eval_loss" in entry],
        trainer=trainer,
    )


def assert_same_metrics(run, *named):
    """Hold every number of the Trainer's history against the step records, under its own name."""
    steps = [record for record in run.records if record["event"] == "step"]
    assert [step["global_step"] for step in steps] == [entry["step"] for entry in run.history]
    for step, entry in zip(steps, run.history, strict=True):
        numbers = {name: value for name, value in entry.items() if isinstance(value, (int, float))}
        for name in set(numbers) - {"learning_rate", "step"}:
            if math.isfinite(numbers[name]):
                assert step[name] == pytest.approx(numbers[name], rel=1e-5), name
        assert set(named) <= set(step)


def of_step(run, step, split="train"):
    return [one for one in run.completions if one["global_step"] == step and one["split"] == split]


def mean(records, name):
    return pytest.approx(sum(record[name] for record in records) / len(records), rel=1e-5, abs=1e-7)


# ---------------------------------------------------------------- what GRPO and RLOO generate


def prefer_blue(completions, **_):
    return [float("blue" in completion[0]["content"]) for completion in completions]


def at_times(completions, log_extra=None, **_):
    """Score every second completion only, as a function does that does not apply to all tasks."""
    if log_extra is not None:
        log_extra("words", [len(completion[0]["content"].split()) for completion in completions])
    return [None if number % 2 else 0.5 for number, _ in enumerate(completions)]


@pytest.fixture(scope="module")
def grpo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grpo")
    config = arguments(
        folder,
        trl.GRPOConfig,
        num_generations=2,
        num_generations_eval=2,
        max_completion_length=6,
        reward_weights=[2.0, 1.0],
        beta=0.1,
        eval_strategy="steps",
        eval_steps=2,
    )
    return train(
        folder,
        trl.GRPOTrainer,
        config,
        [{"prompt": QUESTION}],
        eval_rows=[{"prompt": OTHER}],
        reward_funcs=[prefer_blue, at_times],
        # What the divergence is measured from is then the model without the adapter.
        peft_config=peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]),
    )


def test_reinforcement_brings_its_reward_divergence_and_lengths(grpo):
    assert_same_metrics(
        grpo, "reward", "reward_std", "rewards/prefer_blue/mean", "kl", "completions/mean_length"
    )
    (start,) = [record for record in grpo.records if record["event"] == "start"]
    assert (start["trainer"], start["lora_rank"], start["lora_alpha"]) == ("GRPOTrainer", 2, 4)
    assert start["lora_target_modules"] == ["q_proj", "v_proj"]
    assert 0 < start["model_trainable_params"] < start["model_total_params"]
    assert [record["event"] for record in grpo.records].count("train_summary") == 1


def test_what_was_generated_is_collected_every_so_many_steps_and_at_the_last(grpo):
    assert sorted({one["global_step"] for one in grpo.completions if one["split"] == "train"}) == [1, 3, 4]
    for one in grpo.completions:
        assert one["kind"] == "grpo"
        assert one["batch_size"] == 2
        assert isinstance(one["completion"], str)


def test_the_rewards_and_advantages_are_those_that_the_trainer_logs(grpo):
    for step in (1, 3, 4):
        found, logged = of_step(grpo, step), grpo.history[step - 1]

        assert logged["reward"] == mean(found, "reward")
        assert logged["rewards/prefer_blue/mean"] == mean(found, "rewards/prefer_blue")
        assert sum(one["advantage"] for one in found) == pytest.approx(0.0, abs=1e-4)
        for one in found:
            assert one["prompt"] == "what colour is the sky"
            assert one["rewards/prefer_blue"] == float("blue" in one["completion"])
            assert one["reward"] == 2.0 * one["rewards/prefer_blue"] + one.get("rewards/at_times", 0.0)


def test_a_reward_that_does_not_apply_is_absent_not_nan(grpo):
    assert ["rewards/at_times" in one for one in of_step(grpo, 1)] == [True, False]
    assert not any("non_finite" in one for one in grpo.completions)


def test_columns_that_reward_functions_log_come_along(grpo):
    for one in grpo.completions:
        assert one["extra/words"] == len(one["completion"].split())


def test_what_an_evaluation_generates_is_collected_as_such(grpo):
    for step, evaluation in zip((2, 4), grpo.evaluations, strict=True):
        found = of_step(grpo, step, "eval")

        assert {one["prompt"] for one in found} == {"what is the colour"}
        assert evaluation["eval_reward"] == mean(found, "reward")


@in_make_faults
def test_rloo_is_collected_like_grpo_and_no_more_than_the_buffer_holds(tmp_path):
    config = arguments(
        tmp_path, trl.RLOOConfig, beta=0.0, num_generations=2, max_completion_length=4, max_steps=1
    )
    run = train(
        tmp_path,
        trl.RLOOTrainer,
        config,
        [{"prompt": QUESTION}],
        completions={"buffer": 1},
        reward_funcs=prefer_blue,
    )

    (one,) = run.completions
    assert (one["kind"], one["batch_size"], one["prompt"]) == ("rloo", 2, "what colour is the sky")
    assert not [record for record in run.records if record["event"] == "completions_dropped"]


# ---------------------------------------------------------------- what DPO, KTO, ORPO and CPO learn from


@pytest.fixture(scope="module")
def dpo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dpo")
    config = arguments(
        folder,
        trl.DPOConfig,
        max_length=32,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=1,
        learning_rate=0.05,
        eval_strategy="steps",
        eval_steps=4,
    )
    return train(folder, trl.DPOTrainer, config, PAIRS, eval_rows=PAIRS, ref_model=make_model(seed=1))


def test_the_pairs_of_a_step_are_decoded_with_all_micro_batches(dpo):
    assert sorted({one["global_step"] for one in dpo.completions if one["split"] == "train"}) == [1, 3, 4]
    right = {
        "user what colour is the sky <eos> assistant": ("the sky is blue <eos>", "the sky is green <eos>"),
        "user what is the colour <eos> assistant": ("the sky is green <eos>", "the sky is blue <eos>"),
    }
    for step in (1, 3, 4):
        found = of_step(dpo, step)

        assert len(found) == 2
        assert [(one["chosen"], one["rejected"]) for one in found] == [right[one["prompt"]] for one in found]
    assert {one["prompt"] for one in dpo.completions} == set(right)


def test_preferences_bring_their_rewards_and_margins(dpo):
    assert_same_metrics(dpo, "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies")


def test_each_pair_has_rewards_of_its_own_that_average_to_what_the_trainer_logs(dpo):
    for step in (1, 3, 4):
        found, logged = of_step(dpo, step), dpo.history[step - 1]

        assert logged["rewards/chosen"] == mean(found, "rewards/chosen")
        assert logged["rewards/rejected"] == mean(found, "rewards/rejected")
        assert logged["rewards/margins"] == mean(found, "reward_diff")


def test_the_pairs_of_an_evaluation_are_collected_too(dpo):
    found = of_step(dpo, 4, "eval")

    assert len(found) == 2
    assert dpo.evaluations[0]["eval_rewards/margins"] == mean(found, "reward_diff")
    assert found[0]["reward_diff"] != found[1]["reward_diff"], "they are not two times the mean"


def test_answers_have_their_label_and_their_own_reward(tmp_path):
    config = arguments(
        tmp_path, trl.KTOConfig, max_length=32, per_device_train_batch_size=4, learning_rate=0.05
    )
    run = train(tmp_path, trl.KTOTrainer, config, ANSWERS, ref_model=make_model(seed=1))

    assert sorted({one["global_step"] for one in run.completions}) == [1, 3, 4]
    for step in (1, 3, 4):
        found, logged = of_step(run, step), run.history[step - 1]

        assert len(found) == 4
        # Of each question the answer with "blue" in it is the one that is wanted.
        assert all(one["label"] is ("blue" in one["completion"]) for one in found)
        chosen = [one for one in found if one["label"]]
        rejected = [one for one in found if not one["label"]]
        if chosen:
            assert logged["rewards/chosen"] == mean(chosen, "reward")
        if rejected:
            assert logged["rewards/rejected"] == mean(rejected, "reward")
    assert len({one["reward"] for one in of_step(run, 4)}) > 2, "they are not means"


@in_make_faults
@pytest.mark.parametrize("kind", ["orpo", "cpo"])
def test_the_trainers_without_a_reference_have_their_pairs_and_rewards(tmp_path, kind):
    if kind == "orpo":
        from trl.experimental.orpo import ORPOConfig as Config
        from trl.experimental.orpo import ORPOTrainer as Made
    else:
        from trl.experimental.cpo import CPOConfig as Config
        from trl.experimental.cpo import CPOTrainer as Made
    run = train(tmp_path, Made, arguments(tmp_path, Config, max_length=32, learning_rate=0.05), PAIRS)

    assert sorted({one["global_step"] for one in run.completions}) == [1, 3, 4]
    for step in (1, 3, 4):
        found, logged = of_step(run, step), run.history[step - 1]

        assert {one["kind"] for one in found} == {kind}
        assert {(one["chosen"].split()[3], one["rejected"].split()[3]) for one in found} <= {
            ("blue", "green"),
            ("green", "blue"),
        }
        assert logged["rewards/chosen"] == mean(found, "rewards/chosen")
        assert logged["rewards/margins"] == mean(found, "reward_diff")
        if kind == "orpo":
            assert logged["log_odds_ratio"] == mean(found, "log_odds_ratio")


# ---------------------------------------------------------------- what is left alone


def test_fine_tuning_brings_its_entropy_and_accuracy_and_has_no_completions(tmp_path):
    config = arguments(
        tmp_path, trl.SFTConfig, max_steps=2, max_length=32, eval_strategy="steps", eval_steps=2
    )
    rows = [{"messages": QUESTION + RIGHT}]
    run = train(tmp_path, trl.SFTTrainer, config, rows, eval_rows=rows)

    assert_same_metrics(run, "entropy", "mean_token_accuracy", "num_tokens")
    (evaluation,) = [record for record in run.records if record["event"] == "eval"]
    assert {"eval_loss", "eval_entropy", "eval_mean_token_accuracy"} <= set(evaluation)
    assert run.completions == []


def losses(folder, *, collected):
    """Return the losses of a training whose completions are collected at every step, or not."""
    config = arguments(folder, trl.DPOConfig, max_length=32, learning_rate=0.05, seed=3, max_steps=2)
    completions = {"interval": 1} if collected else {"collect": False}
    run = train(folder, trl.DPOTrainer, config, PAIRS, ref_model=make_model(seed=1), completions=completions)
    assert bool(run.completions) is collected
    return [entry["loss"] for entry in run.history], run.trainer.model.state_dict()


def test_the_training_is_the_same_to_the_last_bit(tmp_path):
    plain, weights = losses(tmp_path / "plain", collected=False)
    watched, same_weights = losses(tmp_path / "watched", collected=True)

    assert plain == watched
    assert all(math.isfinite(loss) for loss in plain)
    assert all(torch.equal(weights[name], same_weights[name]) for name in weights)


def test_an_exception_in_the_training_is_the_callers_own_and_loses_no_completion(tmp_path):
    class FailsLater(trl.DPOTrainer):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            if self.state.global_step == 2:
                raise KeyError("the user's own")
            return loss

    config = arguments(tmp_path, trl.DPOConfig, max_length=32)
    with pytest.raises(KeyError, match="the user's own"):
        train(tmp_path, FailsLater, config, PAIRS, interval=1, phases=True, ref_model=make_model(seed=1))
    records = read_records(tmp_path / "logs/out/metrics.jsonl")

    assert sorted({one["global_step"] for one in records if one["event"] == "completion"}) == [1, 2]
    assert records[-1]["status"] == "failed"


def test_a_tokenizer_that_fails_ends_no_training(tmp_path):
    def fail(*_, **__):
        raise RuntimeError("Already borrowed")

    callback = ours.TelemetryCallback(
        log_dir=tmp_path / "logs",
        system=False,
        csv=False,
        close_timeout=PATIENCE_S,
        completions={"interval": 1},
    )
    trainer = trl.DPOTrainer(
        model=make_model(),
        ref_model=make_model(seed=1),
        args=arguments(tmp_path, trl.DPOConfig, max_length=32),
        train_dataset=datasets.Dataset.from_list(PAIRS * 4),
        processing_class=make_tokenizer(),
        callbacks=[callback],
    )
    trainer.processing_class.decode = fail
    kept = trainer.compute_loss
    trainer.train()
    records = read_records(tmp_path / "logs/out/metrics.jsonl")

    assert trainer.state.global_step == 4
    assert records[-1]["status"] == "finished"
    assert records[-1]["telemetry_errors"] == 4
    assert [record["message"] for record in records if record["event"] == "error"] == [
        "RuntimeError: Already borrowed"
    ]
    assert trainer.compute_loss == kept
