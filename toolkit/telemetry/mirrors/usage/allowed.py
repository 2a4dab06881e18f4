"""What a usage report may contain: each property of an event, where it is found, and which values are sent.

Nothing else is ever sent. A word that is not listed here is sent as "other": the name of a private optimizer or
exception may identify its author. The names listed here do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from toolkit.telemetry.core.formatting import words
from toolkit.telemetry.privacy.public_names import DEVICE
from toolkit.telemetry.runfolder.untrusted import is_number

RUN_START: Final = "run-start"
RUN_PROGRESS: Final = "run-progress"
RUN_END: Final = "run-end"
OTHER: Final = "other"

Check = Callable[[Any], Any]
"""Returns the value to send, or None to send nothing."""


def allowed(event: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the allowed properties of an event, as they are sent; unknown or disallowed values are omitted.

    A property has the value of the first of its fields that is in `found`.
    """
    sent = {}
    for name, (check, *fields) in EVENTS[event].items():
        values = (found.get(field) for field in fields or [name])
        sent[name] = check(next((value for value in values if value is not None), None))
    return _known(sent)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def real(low: float, high: float, digits: int = 6) -> Check:
    """Check that a value is a number within these bounds; it is rounded to `digits` significant digits."""

    def check(value: Any) -> float | None:
        if isinstance(value, str) and _NUMERAL.fullmatch(value):
            # YAML reads 2e-3 as a string.
            value = float(value)
        return float(f"{value:.{digits}g}") if is_number(value) and low <= value <= high else None

    return check


def whole(low: int, high: int, digits: int = 17) -> Check:
    """Check that a value is an integer within these bounds; it may be rounded to fewer `digits`."""
    as_number = real(low, high, digits)

    def check(value: Any) -> int | None:
        number = as_number(value)
        return int(number) if number is not None and number == int(number) else None

    return check


def flag(value: Any) -> bool | None:
    """Check that a value is true or false."""
    return value if isinstance(value, bool) else None


def one_of(known: Collection[str]) -> Check:
    """Check that a value is one of these words, ignoring case; any other is sent as "other"."""

    def check(value: Any) -> str | None:
        if not isinstance(value, str) or not value:
            return None
        return value.lower() if value.lower() in known else OTHER

    return check


def matching(pattern: str, instead: str | None = None) -> Check:
    """Check that a text matches a pattern; `instead` is sent for any other."""
    compiled = re.compile(pattern)

    def check(value: Any) -> str | None:
        if not isinstance(value, str):
            return None
        return value if compiled.fullmatch(value) else instead

    return check


def list_of(item: Check, most: int) -> Check:
    """Check each item of a list, up to `most` items."""

    def check(value: Any) -> list[Any] | None:
        checked = map(item, value[:most]) if isinstance(value, list) else ()
        return [each for each in checked if each is not None] or None

    return check


def mapping_of(names: Check, item: Check) -> Check:
    """Check a mapping, its names and its values."""

    def check(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, Mapping):
            return None
        return _known({name: item(each) for name, each in value.items() if names(name) == name}) or None

    return check


def shape(**checks: Check) -> Check:
    """Check a mapping with these fields."""

    def check(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, Mapping):
            return None
        return _known({name: check(value.get(name)) for name, check in checks.items()}) or None

    return check


_NUMERAL = re.compile(r"[+-]?[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][+-]?[0-9]{1,2})?")

PACKAGES: Final = words(
    """
    torch numpy transformers diffusers peft accelerate trl datasets bitsandbytes safetensors lightning
    xformers triton deepspeed optimum-quanto torchao wandb tensorboard ai-toolkit-telemetry
    """
)
"""Packages whose versions are reported."""

MODULES: Final = words(
    """
    PIL accelerate aiohttp albumentations axolotl bitsandbytes cv2 datasets deepspeed diffusers einops filelock
    flash_attn fsspec huggingface_hub imageio jinja2 kornia lightning lightning_fabric lycoris matplotlib megatron
    nemo numpy omegaconf onnx onnxruntime open_clip optimum orjson pandas peft psutil pyarrow pydantic pynvml
    pytorch_lightning ray requests safetensors scipy sentencepiece sklearn streamlit tensorboard timm tokenizers
    toolkit torch torchao torchaudio torchmetrics torchvision tqdm transformers triton trl unsloth urllib3 vllm
    wandb webdataset xformers yaml
    """
)
"""Public packages: the names of their functions and exceptions may be reported."""

OPTIMIZERS: Final = words(
    """
    adadelta adafactor adagrad adam adam8bit adamax adamw adamw8bit adamw_8bit adamw_anyprecision adamw_apex_fused
    adamw_bnb_8bit adamw_hf adamw_torch adamw_torch_4bit adamw_torch_8bit adamw_torch_fused adamw_torch_npu_fused
    adamw_torch_xla adan ademamix ademamix_8bit adopt apollo_adamw automagic came dadaptadagrad dadaptadam
    dadaptation dadaptlion dadaptsgd galore_adafactor galore_adamw galore_adamw_8bit grokadamw lamb lars lbfgs lion
    lion8bit lion_32bit lion_8bit lomo muon nadam optimi_adamw paged_adamw paged_adamw_32bit paged_adamw_8bit
    paged_lion_32bit paged_lion_8bit prodigy prodigy8bit prodigyopt radam rmsprop rmsprop_bnb schedule_free_adamw
    schedule_free_sgd schedulefreewrapper sgd shampoo soap stable_adamw
    """
)

SCHEDULERS: Final = words(
    """
    chainedscheduler constant constant_with_warmup constantlr cosine cosine_warmup_with_min_lr cosine_with_min_lr
    cosine_with_restarts cosineannealinglr cosineannealingwarmrestarts cycliclr exponential exponentiallr
    inverse_sqrt lambdalr linear linearlr multisteplr none one_cycle onecyclelr piecewise_constant plateau
    polynomial polynomiallr reduce_lr_on_plateau reducelronplateau rex sequentiallr step steplr warmup_stable_decay
    """
)

DTYPES: Final = words(
    """
    16 16-mixed 16-true 32 32-true 64-true auto bf16 bf16-mixed bf16-true bfloat16 float float16 float32 float64
    float8 float8_e4m3fn float8_e5m2 fp16 fp32 fp8 half int4 int8 nf4 no qfloat8 qint4 qint8 tf32 transformer-engine
    uint4
    """
)

LORA_TYPES: Final = words(
    """
    adalora adaption_prompt boft dora ft fullrank hra ia3 ln_tuning locon loha lokr lora lorm oft p_tuning
    prefix_tuning prompt_tuning vblora vera
    """
)

ARCHITECTURES: Final = words(
    """
    auraflow bertforsequenceclassification bloomforcausallm chroma clip cogvideox cohereforcausallm
    deepseekv2forcausallm deepseekv3forcausallm falconforcausallm flex1 flex2 flux flux2 flux_kontext
    fluxtransformer2dmodel gemma2forcausallm gemma3forcausallm gemma3forconditionalgeneration gemmaforcausallm
    glm4forcausallm gpt2lmheadmodel gptneoxforcausallm gptossforcausallm graniteforcausallm hidream hidream_e1
    hunyuan hunyuan_video internlm2forcausallm kolors llama4forconditionalgeneration llamaforcausallm
    llavaforconditionalgeneration ltx ltx2 lumina2 mambaforcausallm mistralforcausallm mixtralforcausallm
    mllamaforconditionalgeneration olmo2forcausallm olmoforcausallm omnigen2 optforcausallm peftmodel
    peftmodelforcausallm phi3forcausallm phiforcausallm pixart pixart_sigma qwen2_5_vl qwen2forcausallm
    qwen2moeforcausallm qwen2vlforconditionalgeneration qwen3forcausallm qwen3moeforcausallm qwen_image
    qwen_image_edit robertaforsequenceclassification sana sd sd1 sd15 sd2 sd3 sd35 sdxl ssd stablelmforcausallm
    t5forconditionalgeneration tiny_dit unet2dconditionmodel vega vitforimageclassification wan wan21 wan22
    whisperforconditionalgeneration zimage
    """
)

TRAINERS: Final = words(
    """
    accelerate ai-toolkit axolotl bcotrainer cpotrainer dpotrainer gkdtrainer grpotrainer ktotrainer lightning
    nashmdtrainer onlinedpotrainer orpotrainer ppotrainer prmtrainer pytorch rewardtrainer rlootrainer
    seq2seqtrainer sfttrainer trainer xpotrainer
    """
)

# Three numbers at most: four may be an IP address.
_VERSION: Final = (
    r"[0-9]{1,4}(?:\.[0-9]{1,8}){0,2}(?:\.?(?:a|b|rc|dev|post)[0-9]{0,8}){0,2}"
    r"(?:\+(?:cpu|cu[0-9]{2,3}|rocm[0-9.]{1,6}|xpu))?"
)
_SHORT_VERSION: Final = matching(r"[0-9]{1,5}(?:\.[0-9]{1,5}){0,2}")
_FRAME: Final = (
    r"[A-Za-z0-9_.]{1,160}:[0-9]{1,7}(?: in [A-Za-z0-9_<>.]{1,80})?|\(script\)|… [0-9]{1,7} frames"
)

_BYTES: Final = whole(0, 10**16)
_SECONDS: Final = real(0.0, 1e10)
_COUNT: Final = whole(0, 10**15)
_RATE: Final = real(0.0, 1e12)
_FIGURE: Final = real(-1e15, 1e15)
_RANK: Final = whole(1, 1_000_000)
_DTYPE: Final = one_of(DTYPES)

MOST_ERRORS: Final = 10
MOST_FRAMES: Final = 31
MOST_EPOCHS: Final = 100
_MOST_DEVICES: Final = 64

_PACE: Final[Mapping[str, tuple[Any, ...]]] = {
    "step": (_COUNT,),
    "epoch": (real(0.0, 1e9),),
    "progress": (real(0.0, 1.0, digits=3),),
    "train_loss": (_FIGURE,),
    "learning_rate": (_FIGURE, "lr"),
    "grad_norm": (_FIGURE,),
    "samples_per_second": (_RATE, "samples_per_sec"),
    "steps_per_second": (_RATE,),
    "peak_cpu_memory_bytes": (_BYTES,),
    "peak_gpu_memory_bytes": (_BYTES,),
}

EVENTS: Final[Mapping[str, Mapping[str, tuple[Any, ...]]]] = {
    RUN_START: {
        "os": (one_of(("linux", "macos", "darwin", "windows", "freebsd")),),
        "os_version": (_SHORT_VERSION,),
        "machine": (one_of(("x86_64", "amd64", "aarch64", "arm64", "ppc64le", "riscv64", "s390x")),),
        "python_version": (_SHORT_VERSION, "python"),
        "package_versions": (mapping_of(matching("|".join(PACKAGES)), matching(_VERSION, OTHER)), "packages"),
        "cpu_count": (whole(1, 100_000),),
        "memory_gb": (whole(1, 1_000_000),),
        "accelerator_type": (one_of(("cuda", "rocm", "xpu", "mps", "npu")),),
        "accelerator_count": (whole(0, 100_000),),
        "accelerator_models": (list_of(matching(DEVICE.pattern, OTHER), _MOST_DEVICES),),
        "accelerator_memory_gb": (list_of(whole(1, 1_000_000), _MOST_DEVICES),),
        "world_size": (_RANK,),
        "trainer": (one_of(TRAINERS), "trainer", "framework"),
        "is_resumed": (flag,),
        "model": (matching(r"[A-Za-z0-9._-]{1,96}/[A-Za-z0-9._-]{1,96}"),),
        "architecture": (one_of(ARCHITECTURES), "model_architecture", "architecture"),
        "total_parameters": (whole(1, 10**17, digits=2), "model_total_params"),
        "trainable_parameters": (whole(1, 10**17, digits=2), "model_trainable_params"),
        "quantize": (flag, "model_quantize", "quantize"),
        "low_vram": (flag, "model_low_vram", "low_vram"),
        "model_dtype": (_DTYPE,),
        "lora_type": (one_of(LORA_TYPES),),
        "lora_rank": (_RANK,),
        "lora_alpha": (_FIGURE,),
        "lora_dropout": (real(0.0, 1.0),),
        "lora_conv_rank": (_RANK,),
        "lora_conv_alpha": (_FIGURE,),
        "batch_size": (whole(1, 10**9),),
        "gradient_accumulation_steps": (
            whole(1, 10**9),
            "gradient_accumulation_steps",
            "gradient_accumulation",
        ),
        "effective_batch_size": (whole(1, 10**12),),
        "gradient_checkpointing": (flag,),
        "max_grad_norm": (_FIGURE,),
        "max_steps": (whole(1, 10**15),),
        "max_epochs": (real(0.0, 1e9), "max_epochs", "epochs"),
        "warmup_steps": (_COUNT,),
        "learning_rate": (_FIGURE,),
        "optimizer": (one_of(OPTIMIZERS),),
        "scheduler": (one_of(SCHEDULERS),),
        "dtype": (_DTYPE,),
    },
    RUN_PROGRESS: {**_PACE, "elapsed_seconds": (_SECONDS,), "seconds_since_last_report": (_SECONDS,)},
    RUN_END: {
        "status": (one_of(("finished", "stopped", "failed")),),
        **_PACE,
        "total_time_seconds": (_SECONDS,),
        "total_steps": (_COUNT,),
        "epochs_completed": (_COUNT,),
        "epoch_times": (mapping_of(matching(r"epoch_[0-9]{1,9}_seconds"), _SECONDS),),
        "average_epoch_time_seconds": (_SECONDS,),
        "gpu_memory": (mapping_of(matching(r"gpu_[0-9]{1,5}_peak_memory_bytes"), _BYTES),),
        "records_lost": (_COUNT,),
        "telemetry_errors": (_COUNT,),
        "errors_total": (_COUNT,),
        "errors": (
            list_of(
                shape(
                    type=matching(r"[A-Za-z_][A-Za-z0-9_.]{0,100}"),
                    count=_COUNT,
                    stack=list_of(matching(_FRAME), MOST_FRAMES),
                ),
                MOST_ERRORS,
            ),
        ),
    },
}
"""Each event with its properties: the check of each, and the fields that may hold it, if not only one of its name."""
