"""The only words that a usage report may contain; any other is sent as "other".

The name of a private optimizer or exception may identify its author. The names listed here do not.
"""

from __future__ import annotations

from typing import Final

from toolkit.core.formatting import words

OTHER: Final = "other"


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

ACCELERATORS: Final = frozenset({"cuda", "rocm", "xpu", "mps", "npu"})
SYSTEMS: Final = frozenset({"linux", "macos", "darwin", "windows", "freebsd"})
MACHINES: Final = frozenset({"x86_64", "amd64", "aarch64", "arm64", "ppc64le", "riscv64", "s390x"})
STATUSES: Final = frozenset({"finished", "stopped", "failed"})
