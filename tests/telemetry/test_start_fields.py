from __future__ import annotations

import yaml

from toolkit.telemetry.logger.machine.start_fields import (
    lora_fields,
    model_fields,
    training_fields,
)
from toolkit.telemetry.logger.options import find_process

CONFIG = yaml.safe_load(
    """
    job: extension
    config:
      name: greyjacket
      process:
        - type: sd_trainer
          network:
            type: lora
            linear: 16
            linear_alpha: 8
            conv: 4
            conv_alpha: 2
            dropout: 0.1
            network_kwargs:
              only_if_contains: [attn.to_q, attn.to_k]
              ignore_if_contains: [norm]
          train:
            batch_size: 2
            steps: 2000
            gradient_accumulation_steps: 4
            optimizer: adamw8bit
            lr: 1.0e-4
            lr_scheduler: cosine
            lr_scheduler_params: {num_warmup_steps: 100}
            gradient_checkpointing: true
            noise_scheduler: flowmatch
            dtype: bf16
          model:
            name_or_path: black-forest-labs/FLUX.1-dev
            is_flux: true
            quantize: true
            low_vram: false
    """
)


def test_the_process_is_found_in_the_whole_file_in_its_config_and_in_itself():
    process = CONFIG["config"]["process"][0]

    assert find_process(CONFIG) is process
    assert find_process(CONFIG["config"]) is process
    assert find_process(process) is process


def test_of_several_processes_the_one_with_a_telemetry_block_is_meant():
    caption, train, logged = {"type": "caption"}, {"train": {}}, {"train": {}, "telemetry": {"enabled": True}}

    assert find_process({"config": {"process": [caption, train, logged]}}) is logged
    assert find_process({"config": {"process": [caption, train]}}) is train
    assert find_process({"config": {"process": [caption]}}) is caption


def test_a_lora_is_described_in_the_start_records_words():
    assert lora_fields(find_process(CONFIG)["network"]) == {
        "lora_type": "lora",
        "lora_rank": 16,
        "lora_alpha": 8,
        "lora_conv_rank": 4,
        "lora_conv_alpha": 2,
        "lora_dropout": 0.1,
        "lora_target_modules": ["attn.to_q", "attn.to_k"],
        "lora_ignore_modules": ["norm"],
    }


def test_a_peft_configuration_is_described_in_the_same_words():
    peft = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": ["q_proj"]}

    assert lora_fields(peft) == {
        "lora_type": "LORA",
        "lora_rank": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "lora_target_modules": ["q_proj"],
    }


def test_the_training_setup_is_described_with_its_effective_batch_size():
    assert training_fields(find_process(CONFIG)) == {
        "batch_size": 2,
        "gradient_accumulation_steps": 4,
        "effective_batch_size": 8,
        "learning_rate": 1e-4,
        "optimizer": "adamw8bit",
        "scheduler": "cosine",
        "warmup_steps": 100,
        "max_steps": 2000,
        "dtype": "bf16",
        "gradient_checkpointing": True,
        "noise_scheduler": "flowmatch",
    }


def test_the_model_is_described():
    assert model_fields(find_process(CONFIG)) == {
        "model_name_or_path": "black-forest-labs/FLUX.1-dev",
        "is_flux": True,
        "quantize": True,
        "low_vram": False,
    }


def test_what_is_not_stated_is_absent_rather_than_guessed():
    assert lora_fields({}) == {}
    assert training_fields({}) == {}
    assert model_fields({}) == {}
    assert training_fields({"train": {"batch_size": 4}}) == {"batch_size": 4}
    assert training_fields({"train": {"lr": None, "batch_size": "auto", "gradient_accumulation": 2}}) == {
        "batch_size": "auto",
        "gradient_accumulation_steps": 2,
    }
