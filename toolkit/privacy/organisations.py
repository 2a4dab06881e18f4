"""Well-known public organisations: whose models are called by a name that tells nothing about who trains them."""

from __future__ import annotations

from typing import Final

DEFAULT: Final = frozenset(
    {
        *("01-ai", "ai21labs", "ai4bharat", "aisingapore", "alibaba-nlp", "allenai", "amazon", "anthropic"),
        *("apple", "arcee-ai", "argilla", "axolotl-ai-co", "baai", "baichuan-inc", "baidu", "bigcode"),
        *("bigscience", "black-forest-labs", "blinkdl", "bytedance", "bytedance-seed", "cais", "cerebras"),
        *("coherelabs", "cohereforai", "compvis", "coqui", "cyberagent", "databricks", "deepfloyd"),
        *("deepseek-ai", "diffusers", "distilbert", "dphn", "eleutherai", "facebook", "facebookai"),
        *("facebookresearch", "fal", "genmo", "google", "google-bert", "google-research", "google-t5"),
        *("hf-internal-testing", "hidream-ai", "huggingface", "huggingfaceh4", "huggingfacem4"),
        *("huggingfacetb", "huggingfacefw", "ibm", "ibm-granite", "ilsvrc", "inclusionai", "internlm"),
        *("intfloat", "jinaai", "kandinsky-community", "keras", "kwai-kolors", "laion", "lerobot"),
        *("lgai-exaone", "lightning-ai", "lightricks", "liuhaotian", "llava-hf", "lmsys", "madebyollin"),
        *("meta-llama", "microsoft", "minimaxai", "mistralai", "mixedbread-ai", "mlfoundations"),
        *("moonshotai", "mosaicml", "nomic-ai", "nousresearch", "nvidia", "nyu-mll", "open-orca"),
        *("openai", "openai-community", "openassistant", "openbmb", "opengvlab", "openlm-research"),
        *("ostris", "pixart-alpha", "playgroundai", "primeintellect", "pytorch", "qwen", "rajpurkar"),
        *("rinna", "runwayml", "rwkv", "salesforce", "sentence-transformers", "skywork", "snowflake"),
        *("speechbrain", "stabilityai", "stanfordnlp", "state-spaces", "stepfun-ai", "suno", "swiss-ai"),
        *("tatsu-lab", "teknium", "tencent", "tencent-hunyuan", "tensorflow", "thudm", "tiiuae", "timm"),
        *("tinyllama", "togethercomputer", "trl-internal-testing", "trl-lib", "unsloth", "upstage"),
        *("utter-project", "vikhyatk", "wan-ai", "xai-org", "xiaomimimo", "yahma", "zai-org"),
    }
)
"""In small letters; names of organisations are compared without regard to their case."""
