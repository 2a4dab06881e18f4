"""Makes a tiny Stable Diffusion with random weights, and pictures to train it on.

python make_tiny_model.py FOLDER
"""

from __future__ import annotations

import json
import sys

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

folder = sys.argv[1]
torch.manual_seed(0)
letters = [chr(code) for code in range(33, 127)]
words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
vocabulary = {word: number for number, word in enumerate(words)}
with open(folder + "/vocab.json", "w") as file:
    json.dump(vocabulary, file)
with open(folder + "/merges.txt", "w") as file:
    file.write("#version: 0.2\n")
encoder = CLIPTextConfig(
    vocab_size=len(words),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    bos_token_id=len(words) - 2,
    eos_token_id=len(words) - 1,
)
StableDiffusionPipeline(
    vae=AutoencoderKL(
        block_out_channels=(16,) * 4,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        norm_num_groups=8,
    ),
    text_encoder=CLIPTextModel(encoder),
    tokenizer=CLIPTokenizer(folder + "/vocab.json", folder + "/merges.txt", model_max_length=77),
    unet=UNet2DConditionModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(32, 64),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ),
    scheduler=DDIMScheduler(),
    safety_checker=None,
    feature_extractor=None,
    requires_safety_checker=False,
).save_pretrained(folder + "/model")
for number in range(5):
    Image.new("RGB", (64, 64), (number * 50, 120, 200)).save(f"{folder}/{number}.png")
    with open(f"{folder}/{number}.txt", "w") as file:
        file.write("a plain square")
