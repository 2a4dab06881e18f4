"""Which names of models and data sets are public, and which settings hold one."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from toolkit.core.formatting import words
from toolkit.privacy.harmless_words import has_known_extension, is_plain


def is_public_model(name: str, organisations: Collection[str], local_folders: Iterable[Path] = ()) -> bool:
    """Return whether `name` is a model of one of `organisations` (in lower case), and not a path on this machine.

    A name is exactly `organisation/name`, in ASCII. `nvidia/../../home` is not, nor is one with a trailing slash; and
    if one of `local_folders` contains a folder of the organisation's name, it may be a path.
    """
    if not _REPOSITORY.fullmatch(name) or ".." in name or "--" in name:
        return False
    organisation = name.partition("/")[0]
    if organisation.lower() not in organisations:
        return False
    return not any(os.path.lexists(folder / organisation) for folder in local_folders)


def is_public_bare_name(name: str) -> bool:
    """Return whether `name`, without an organisation, is a well-known model or consists of ordinary words."""
    return name.lower() in _WELL_KNOWN or is_plain(name)


@lru_cache(maxsize=4096)
def holds_a_model(name: str) -> bool:
    """Return whether a setting or option called `name` holds the name of a model or a data set."""
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(words) and (
        words[-1] in _MODELS or tuple(words[-2:]) in _PAIRS or words[-3:] == ["name", "or", "path"]
    )


def model_settings(text: str) -> Iterator[re.Match[str]]:
    """Yield the values of settings in `text` that name a model or data set: `model=acme/x`, `--model acme/x`."""
    if "/" not in text and "\\" not in text:
        return
    for match in _SETTING.finditer(text):
        if holds_a_model(match["name"] or match["option"]):
            value = _VALUE.match(text, match.end())
            if value is not None and ("/" in value[0] or "\\" in value[0]):
                yield value


def repositories_in(text: str) -> Iterator[tuple[re.Match[str], bool]]:
    """Yield what looks like `organisation/name` in a sentence, and whether the words around it confirm that it is one.

    If they do not, it must look like one itself: with a dash, or with letters and digits mixed.
    """
    if "/" not in text:
        return
    for match in _IN_A_SENTENCE.finditer(text):
        whose, name = match["whose"], match["name"]
        if has_known_extension(name) or (is_plain(whose) and is_plain(name)):
            continue
        is_confirmed = (
            _BEFORE.search(text, max(0, match.start() - _AROUND), match.start()) is not None
            or _BEHIND.match(text, match.end()) is not None
        )
        if is_confirmed or "-" in match[0] or re.search(r"[A-Za-z][0-9]|[0-9][A-Za-z]", match[0]):
            yield match, is_confirmed


def looks_like_a_path(name: str) -> bool:
    """Return whether the value of a model setting begins like a path or an address."""
    return name.startswith(("/", "~", ".", "$", "\\", "%")) or name[1:3] in (":\\", ":/") or "://" in name


_IN_A_SENTENCE = re.compile(
    r"""(?<![\w./@:%~$\\>-])(?P<whose>[A-Za-z0-9][\w.-]{1,94}[A-Za-z0-9])
    /(?P<name>[A-Za-z0-9][\w.-]{1,94}[A-Za-z0-9])(?![\w/@(-]|\\(?!["'])|\.\w)""",
    re.VERBOSE | re.ASCII,
)
_AROUND: Final = 48
_THINGS: Final = (
    r"(?:models?|checkpoints?|data[ -]?sets?|repo(?:sitory)?|adapters?|tokenizers?|weights|hub|lora)"
)
_BEFORE = re.compile(
    rf"""\b(?:{_THINGS}|pre-?trained|fine-?tun\w{{1,5}}|load\w{{0,3}}|download\w{{0,3}}|push\w{{0,3}}|upload\w{{0,3}}
    |train\w{{0,3}}|merg\w{{1,3}}|reach|access|find)\b
    (?:[ ](?:of|on|from|to|in|with|the|a|our|my|called|named|at|is)){{0,3}}[ :]{{0,2}}["'`(\[]?\Z""",
    re.VERBOSE | re.IGNORECASE,
)
_BEHIND = re.compile(
    rf"""["'`)\]]?[ ](?:{_THINGS}\b|is[ ]not[ ]a[ ](?:local|valid)|on[ ]the[ ]hub|does[ ]not[ ]exist)""",
    re.VERBOSE | re.IGNORECASE,
)
_REPOSITORY = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,94}[A-Za-z0-9]?/[A-Za-z0-9][A-Za-z0-9._-]{0,94}[A-Za-z0-9]?"
)
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")

_SETTING = re.compile(
    r"""(?<![\w.-])(?:(?P<name>-{0,2}[A-Za-z_][\w.-]{0,80})["']?\s{0,3}[=:]\s{0,3}["']?|(?P<option>--?[A-Za-z][\w.-]{0,80})\s{1,3}["']?)"""
)
_VALUE = re.compile(r"""[^\s"',;)\]}=]{3,512}""")
_MODELS: Final = words("model models tokenizer dataset datasets checkpoint adapter repo")
_PAIRS: Final = frozenset(
    {
        *(
            (what, how)
            for what in ("model", "tokenizer", "dataset", "repo", "adapter", "lora", "vae")
            for how in ("name", "id", "path")
        ),
        *(("base", "model"), ("data", "set"), ("assistant", "model"), ("teacher", "model")),
    }
)

_WELL_KNOWN: Final = words(
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
