"""A language model of some thousand random weights, and a tokenizer of some words: nothing is downloaded."""

from __future__ import annotations

from tests.lazy_module import LazyModule

tokenizers = LazyModule("tokenizers")
transformers = LazyModule("transformers")

WORDS = (
    "<pad>",
    "<eos>",
    "<unk>",
    "user",
    "assistant",
    "the",
    "sky",
    "is",
    "blue",
    "green",
    "what",
    "colour",
)

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} <eos> {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def make_model(seed=0):
    """Return a model of two layers; the same seed gives the same weights."""
    transformers.set_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    return transformers.LlamaForCausalLM(config)


def make_tokenizer():
    """Return a tokenizer of whole words, with a chat template."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def make_examples(count):
    """Return examples of eight tokens for a Trainer without a tokenizer."""
    rows = [[(start + place) % len(WORDS) for place in range(8)] for start in range(count)]
    return [{"input_ids": row, "labels": row, "attention_mask": [1] * 8} for row in rows]
