"""Which names of models, data sets and devices are public."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from toolkit.telemetry.core.formatting import words


def is_public_model(name: str, local_folders: Iterable[Path] = (Path(),)) -> bool:
    """Return whether `name` is a model of a well-known organisation, and not a path on this machine.

    A name is exactly `organisation/name`, in ASCII. `nvidia/../../home` is not, nor is one with a trailing slash; and
    if one of `local_folders` contains a folder of the organisation's name, it may be a path.
    """
    if not _REPOSITORY.fullmatch(name) or ".." in name or "--" in name:
        return False
    organisation = name.partition("/")[0]
    if organisation.lower() not in PUBLIC_ORGANISATIONS:
        return False
    return not any(os.path.lexists(folder / organisation) for folder in local_folders)


_REPOSITORY = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,94}[A-Za-z0-9]?/[A-Za-z0-9][A-Za-z0-9._-]{0,94}[A-Za-z0-9]?"
)

DEVICE = re.compile(
    r"(?:NVIDIA|Tesla|Quadro|GeForce|TITAN|AMD|Radeon|Instinct|Intel|Arc|Apple|Gaudi|Ascend)(?:\(R\))?"
    r"(?: (?:GeForce|RTX|GTX|TITAN|Quadro|Tesla|Instinct|Radeon|Graphics|Data|Center|Arc|Xeon|EPYC|Ryzen|Core|Pro|Max"
    r"|Ultra|Ti|SUPER|Ada|Blackwell|Generation|Laptop|GPU|PCIe|SXM[0-9]?|NVL|HBM[0-9]e?|[A-Z]{0,3}[0-9]{1,5}[A-Z]{0,3})){0,8}"
)
"""Names that vendors give to accelerators and processors."""

WELL_KNOWN_MODELS: Final = words(
    """
    gpt2 gpt2-medium gpt2-large gpt2-xl distilgpt2 openai-gpt ctrl bert-base-uncased bert-base-cased
    bert-large-uncased bert-large-cased distilbert-base-uncased bert-base-multilingual-cased
    distilbert-base-cased roberta-base roberta-large distilroberta-base xlm-roberta-base
    xlm-roberta-large albert-base-v2 albert-xxlarge-v2 xlnet-base-cased t5-small t5-base t5-large t5-3b
    t5-11b camembert-base flaubert alpaca squad glue wikitext imdb mnist cifar10 cifar100 imagenet c4
    gsm8k
    """
)
"""Names from before every model belonged to an organisation."""

PUBLIC_ORGANISATIONS: Final = words(
    """
    01-ai ai21labs ai4bharat aisingapore alibaba-nlp allenai amazon anthropic apple arcee-ai argilla
    axolotl-ai-co baai baichuan-inc baidu bigcode bigscience black-forest-labs blinkdl bytedance
    bytedance-seed cais cerebras cohereforai coherelabs compvis coqui cyberagent databricks deepfloyd
    deepseek-ai diffusers distilbert dphn eleutherai facebook facebookai facebookresearch fal genmo google
    google-bert google-research google-t5 hf-internal-testing hidream-ai huggingface huggingfacefw
    huggingfaceh4 huggingfacem4 huggingfacetb ibm ibm-granite ilsvrc inclusionai internlm intfloat jinaai
    kandinsky-community keras kwai-kolors laion lerobot lgai-exaone lightning-ai lightricks liuhaotian
    llava-hf lmsys madebyollin meta-llama microsoft minimaxai mistralai mixedbread-ai mlfoundations
    moonshotai mosaicml nomic-ai nousresearch nvidia nyu-mll open-orca openai openai-community openassistant
    openbmb opengvlab openlm-research ostris pixart-alpha playgroundai primeintellect pytorch qwen rajpurkar
    rinna runwayml rwkv salesforce sentence-transformers skywork snowflake speechbrain stabilityai
    stanfordnlp state-spaces stepfun-ai suno swiss-ai tatsu-lab teknium tencent tencent-hunyuan tensorflow
    thudm tiiuae timm tinyllama togethercomputer trl-internal-testing trl-lib unsloth upstage utter-project
    vikhyatk wan-ai xai-org xiaomimimo yahma zai-org
    """
)
"""Well-known organisations, in lower case: the name of a model of theirs says nothing about who trains with it."""
