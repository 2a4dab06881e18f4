"""A configuration for people."""

from __future__ import annotations

from toolkit.telemetry.runs.listing.config_summary import fold_lists, rows, summary


def test_what_people_look_for_comes_from_the_clearest_name():
    config = {
        "lora_target_modules": ["q", "k"],
        "learning_rate": 2e-4,
        "config": {
            "process": [{"train": {"lr": 1.0, "steps": 2000, "batch_size": 4, "seed": 7}}],
            "network": {"linear": 16},
            "model": {"name_or_path": "org/model", "optimizer": None},
            "lr_scheduler": {"lr": "cosine"},
        },
    }

    assert summary(config) == [
        ("Learning rate", "2e-4"),
        ("Rank", "16"),
        ("Batch size", "4"),
        ("Steps", "2,000"),
        ("Seed", "7"),
        ("Model", "org/model"),
    ]
    assert summary({}) == []
    assert summary({"steps": 10**400, "seed": True, "lr": "cosine"}) == []


def test_lists_of_plain_values_are_one_row_and_nothing_is_there_twice():
    config = {
        "run_id": "x",
        "lora_rank": 16,
        "layers": [f"layer{n}" for n in range(30)],
        "config": {"network": {"linear": 16, "conv": 16}, "lora_rank": 32, "steps": [{"a": 1}, {"a": 2}]},
    }

    assert rows(config) == {
        "lora_rank": 16,
        "layers": "layer0, layer1, layer2, layer3, layer4, layer5, … (30 values)",
        "config.network.conv": 16,
        "config.lora_rank": 32,
        "config.steps[0].a": 1,
        "config.steps[1].a": 2,
        "run_id": "x",
    }
    assert list(rows(config))[-1] == "run_id"
    assert fold_lists([1, 2]) == "1, 2"
    assert fold_lists([1]) == [1]
