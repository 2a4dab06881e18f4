"""What of a record may be shared: numbers, words of known settings, versions, public models. Nothing else passes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.formatting import words
from toolkit.telemetry.privacy.harmless_words import is_plain
from toolkit.telemetry.privacy.public_names import DEVICE, WELL_KNOWN_MODELS, is_public_model
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.privacy.secret_names import Secrecy, secrecy_of
from toolkit.telemetry.runfolder.records import NON_FINITE, SPREAD, Record

_MOST_DEPTH: Final = 16
_MOST_NAMES: Final = 20_000
"""Names that get a number each; all others share one."""

TEXT_SETTINGS: Final = words(
    """
    arch architecture attention backend bias cause caught_by clock compute_dtype cpu_model decision device
    device_type direction dtype event framework kind level loss_type lora_target_modules lora_type lr_scheduler
    lr_scheduler_type machine mixed_precision mode module network_type noise_scheduler optim optimizer os outcome
    phase precision process_type qtype quantization reason sampler save_dtype scheduler service severity source
    state status strategy table target_modules task_type timestep_type train_dtype trainer type unit
    """
)
"""Settings whose value may be shared if it consists of plain words: `optimizer`, `dtype`."""
MODEL_SETTINGS: Final = words(
    """
    base_model base_model_name dataset dataset_name model model_id model_name model_name_or_path name_or_path
    pretrained_model_name_or_path tokenizer
    """
)
"""Settings whose value may be shared if it is a model or data set of a well-known organisation."""
PUBLIC_PACKAGES: Final = words(
    """
    accelerate ai-toolkit-telemetry axolotl bitsandbytes datasets deepspeed diffusers flash-attn huggingface-hub jax
    lightning megatron-core nemo-toolkit numpy optimum-quanto peft pytorch-lightning safetensors tensorboard
    tokenizers toolkit torch torchao torchaudio torchvision transformers triton trl unsloth vllm wandb xformers
    """
)
"""Packages whose version may be shared."""
_FIELDS: Final = words(
    """
    accelerators actions advice allocated_bytes attempts attributes began_in_session bins boot_id caught_by
    caused_by causes confidence cpu_percent data_loading data_repeated data_starvation dead_lora dirty divergence
    doing duration ended evaluations evidence exit_code expires exploding_grad fingerprint free_mib gpu_mem_gib
    gpu_mem_mib gpu_util_pct grown_mib has_changed incident instability interrupted iowait knobs label_leak logical
    lost_pct lr_multiplier lr_problem mean_pct mem_used_gb memory_growth metric_defined
    net_received_mb_s net_sent_mb_s noticed_step os others_cpu_before_pct others_cpu_pct others_gpu_before_gb
    others_gpu_gb overfit physical plateau policy_collapse process_cpu_percent
    ram_percent ram_used_mb rank_dead rank_hung rank_silent receiver remedies repeats reserved_bytes resumed
    reward_hacking rise_pct rss_mib share_pct sm_clock_mhz stacks stalled steps_folded straggler swap_used_mb
    tok_per_sec underflow unfinished usable uuid vanishing_grad zero_grad_fraction
    """
)
"""Names of our own records and findings, besides those of plain words."""
_IDS: Final = words("id parent_id span_id run_id fingerprint")
_NAMES_OF_METRICS: Final = words("metric metrics span")
_MACHINE: Final = words("boot_id host hostname node user username uuid")
"""Names whose texts never pass: a short host name is not recognised elsewhere."""
_NON_FINITE: Final = words("NaN Infinity -Infinity")

_MADE_BY_THE_LOGGER = re.compile(r"(?:[0-9]{1,6}-[a-z]{1,10}-)?[0-9a-f]{8,16}")
# Three numbers at most: four may be an IP address.
VERSION = re.compile(
    r"[0-9]{1,4}(?:\.[0-9]{1,5}){0,2}(?:\.?(?:a|b|rc|dev|post)[0-9]{1,8})?(?:\+(?:cpu|cu[0-9]{2,3}))?"
)
# Single letters are plain words, and so could be those of a hexadecimal token.
_LIKE_A_TOKEN = re.compile(r"(?:[0-9]+[A-Za-z]+){2}[0-9]|[A-Za-z][0-9]{5}|(?:[0-9]{1,3}[.-]){3}[0-9]")
_NUMERAL = re.compile(r"[+-]?[0-9]{1,8}(?:\.[0-9]{0,15})?(?:[eE][+-]?[0-9]{1,2})?")


class Shareable:
    """Copies records with only what may pass, and counts by field what was left out.

    A name that is not made of plain words becomes `name_1`, the same one everywhere. With a `redactor` all other texts
    and names pass too, as it rewrites them.
    """

    def __init__(
        self,
        *,
        redactor: Redactor | None = None,
        local_folders: Iterable[Path] = (Path(),),
    ) -> None:
        self.left_out: Counter[str] = Counter()
        self._redactor = redactor
        self._local_folders = tuple(local_folders)
        self._numbers: dict[str, int] = {}

    @property
    def renamed(self) -> int:
        """How many names were replaced."""
        return len(self._numbers)

    def record(self, record: Record) -> Record:
        """Return what may be shared of `record`."""
        copied = self._mapping(self._masked(record), "", 0)
        copied["event"] = self.name(str(record.get("event")))
        return copied

    def value(self, value: Any, name: str) -> Any:
        """Return what may be shared of a value called `name`; None if nothing may."""
        return self._value(self._masked({name: value})[name], name, name, 0)

    def text(self, text: str, name: str) -> str | None:
        """Return `text`, the value of `name`, if it may be shared."""
        if secrecy_of(name) is Secrecy.OPEN and self._passes(text, name):
            return text
        if self._redactor is not None and name not in _MACHINE:
            rewritten: str = self._redactor.redact({name: text}).popitem()[1]
            return rewritten
        return None

    def _masked(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return `tree` without the secrets that only what is next to them gives away: `--hf-token`, `abc`."""
        masked: dict[str, Any] = tree if self._redactor is None else self._redactor.mask(tree)
        return masked

    def _passes(self, text: str, name: str) -> bool:
        if name in _IDS:
            return _MADE_BY_THE_LOGGER.fullmatch(text) is not None
        if name in MODEL_SETTINGS and (
            text.lower() in WELL_KNOWN_MODELS
            or is_public_model(text, self._local_folders)
            or DEVICE.fullmatch(text)
        ):
            return True
        if name in TEXT_SETTINGS or name in MODEL_SETTINGS:
            return is_known(text)
        return VERSION.fullmatch(text) is not None or _NUMERAL.fullmatch(text) is not None

    def _mapping(self, mapping: dict[Any, Any], path: str, depth: int) -> dict[str, Any]:
        copied: dict[str, Any] = {}
        for key, value in mapping.items():
            if path == "packages" and key not in PUBLIC_PACKAGES:
                # A package of one's own has a telling name, and hundreds of others say little.
                self.left_out[path] += 1
                continue
            name = self.name(str(key))
            where = f"{path}/{name}" if path else name
            passed = self._value(value, str(key), where, depth + 1)
            if passed is not None or value is None:
                copied[name] = passed
        return copied

    def _value(self, value: Any, name: str, where: str, depth: int) -> Any:
        passed: Any = None
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            passed = None if secrecy_of(name) is Secrecy.ALWAYS else value
        elif isinstance(value, str):
            passed = self._text(value, name, where)
        elif depth < _MOST_DEPTH and isinstance(value, list):
            items = (self._value(item, name, where, depth + 1) for item in value)
            return [item for item in items if item is not None]
        elif depth < _MOST_DEPTH and isinstance(value, dict) and secrecy_of(name) is Secrecy.OPEN:
            return self._mapping(value, where, depth)
        if passed is None:
            self.left_out[where] += 1
        return passed

    def _text(self, text: str, name: str, where: str) -> str | None:
        parent = where.rpartition("/")[0]
        if parent == NON_FINITE:
            return text if text in _NON_FINITE else None
        if name in _NAMES_OF_METRICS or (name == "name" and not parent):
            return self.name(text)
        if parent == "packages":
            return text if name in PUBLIC_PACKAGES and VERSION.fullmatch(text) else None
        if parent == "accelerators" and DEVICE.fullmatch(text):
            return text
        return self.text(text, name)

    def name(self, name: str) -> str:
        """Return the name under which a value is shared."""
        if name in PUBLIC_PACKAGES or is_known(name):
            return name
        if self._redactor is not None:
            return self._redactor.redact_text(name)
        ending = next((ending for ending in SPREAD if name.endswith(ending)), "")
        base = name.removesuffix(ending)
        if base not in self._numbers and len(self._numbers) >= _MOST_NAMES:
            return f"name{ending}"
        return f"name_{self._numbers.setdefault(base, len(self._numbers) + 1)}{ending}"


def is_known(name: str) -> bool:
    """Return whether `name` begins with a letter, and its parts are plain words or fields of ours."""
    return name[:1].isalpha() and all(
        part in _FIELDS or (is_plain(part) and not _LIKE_A_TOKEN.search(part)) for part in name.split("/")
    )
