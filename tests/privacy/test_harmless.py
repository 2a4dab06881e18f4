"""What every machine has, and is no secret, stays readable, in a run's own files."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import uuid
from datetime import datetime, timezone
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path

import pytest

from tests.lengths import longer
from toolkit.telemetry.privacy.masking import Masker, mask_secrets

PATHS = (
    *("/usr/share/dict/words", "/usr/share/zoneinfo/UTC"),
    *("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf", "/usr/lib/python3.11/json/decoder.py"),
    *("/usr/lib/python3.11", "/usr/lib/python3.11/lib-dynload"),
    *("/usr/lib/python3/dist-packages/apt/cache.py", "/usr/lib64/python3.9/threading.py"),
    "/usr/local/lib/python3.10/dist-packages/torch/nn/modules/module.py",
    *("/opt/conda/lib/python3.11/site-packages/torch/_tensor.py", "/usr/bin/gcc", "/usr/bin/python3.11"),
    *("/usr/bin/nvidia-smi", "/bin/sh", "/usr/bin/env", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
    *("/usr/local/cuda/lib64/libcudart.so.12", "/usr/local/cuda-12.4/bin/nvcc"),
    *("/lib64/ld-linux-x86-64.so.2", "/usr/include/stdio.h", "/proc/self/status", "/proc/1234/maps"),
    *("/proc/sys/kernel/pid_max", "/sys/class/drm/card0", "/etc/os-release", "/etc/hosts"),
    *("/etc/ssl/certs/ca-certificates.crt", "/dev/nvidia0", "/dev/dri/card1"),
)
VERSIONS = (
    *("version 12.4.99.1", "CUDA 12.4.99.1", "cuda: 12.4.99.1", "driver 12.4.99.1 loaded", "cuBLAS 12.4.5.8"),
    *("nvidia-cublas-cu12 12.4.5.8", "release 12.4.99.1", "NCCL 2.21.5.1+cuda12.4", "V12.4.99.1"),
    *("libnccl.so.2.21.5.1", "torch 2.5.1.0", "build 10.0.19.45", "TensorRT 10.3.0.26", "cudnn-9.1.0.70"),
)
SENTENCES = (
    *("SeamlessM4Tv2DecoderLayer", "Qwen3OmniMoeThinkerConfig"),
    "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
    "commit 3b1f2c4d5e6f708192a3b4c5d6e7f8091a2b3c4d of main",
    *("job_2024-05-17T12-34-56_lr1e-4_bs64_seed1337", "model.layers.31.self_attn.q_proj.lora_A.weight"),
    *("cache-key-v1-linux-x86_64", "test_live_reload_of_the_page", "s.startswith('x')", "AP50=0.4321"),
    "eval/rouge-L",
)


@pytest.mark.parametrize("texts", [PATHS, VERSIONS, SENTENCES], ids=["paths", "versions", "sentences"])
def test_a_harmless_text_stays_as_it_is_alone_and_in_a_sentence(texts):
    sentences = [form.format(text) for text in texts for form in ("{}", "could not open {}", "({})", "x={}")]

    assert [mask_secrets(text) for text in sentences] == sentences


@pytest.mark.parametrize(
    "given",
    [
        {"env": {"PWD": "/work/x", "OLDPWD": "/work"}},
        {"env/PWD": "/work/x"},
        {"PWD": "C:\\work"},
        {"env": ["PWD=/work/x", "OLDPWD=/work"]},
        "PWD=/work/x HOME=/root",
    ],
)
def test_the_folder_that_a_shell_calls_pwd_is_no_password(given):
    assert mask_secrets(given) == given


@pytest.mark.parametrize(
    "given",
    [
        *(
            {"PWD": "hunter2"},
            {"pwd": "/hunter2"},
            {"DB_PWD": "/hunter2"},
            {"credentials": {"PWD": "/hunter2"}},
        ),
        *("UID=sa;PWD=hunter2", "UID=sa;PWD=/hunter2", "pwd=/hunter2"),
    ],
)
def test_a_password_that_is_called_pwd_is_one(given):
    assert "hunter2" not in repr(mask_secrets(given))


# ------------------------------------------------------------ how often the rule for random tokens is wrong

WORDS = "flux qwen llama wan sdxl clip vit resnet adam cosine lora rank grey jacket cats train eval v2 large".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
AN_IMAGE = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    b"\xff\xd8\xff\xe0\0\x10JFIF\0",
    b"GIF89a",
    b"RIFF\0\0\0\0WEBPVP8 ",
)


def made_up(chance):
    """Yield ordinary texts of each kind in turn, without end."""

    def some(alphabet, length):
        return "".join(chance.choices(alphabet, k=length))

    def hexadecimal(length):
        return some("0123456789abcdef", length)

    def name(sign="-"):
        return sign.join(chance.choices(WORDS, k=chance.randint(2, 5)))

    def data(size):
        return base64.b64encode(chance.choice(AN_IMAGE) + chance.randbytes(size)).decode()

    while True:
        step = chance.randrange(10**6)
        now = datetime.fromtimestamp(1.6e9 + chance.random() * 1e8, timezone.utc)
        yield f"commit {hexadecimal(40)} of main, was {hexadecimal(7)}"
        yield hexadecimal(chance.choice([8, 16, 24, 32, 40, 64, 128]))
        yield f"wandb: run {some(LETTERS + '0123456789', 8)} in wandb/run-{now:%Y%m%d_%H%M%S}-{some(LETTERS, 8)}"
        yield str(uuid.UUID(int=chance.getrandbits(128)))
        yield f"run {some('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 26)} of session {hexadecimal(12)}"
        yield f"mlruns/{chance.randrange(10**18)}/{hexadecimal(32)}/metrics/{name('_')}"
        yield f"sha256:{hexadecimal(64)}  model-0000{step % 9}-of-00009.safetensors"
        yield f"sha256-{base64.b64encode(chance.randbytes(32)).decode()}"
        yield f'"etag": "{base64.urlsafe_b64encode(chance.randbytes(24)).decode()}"'
        yield f"md5 {base64.b64encode(chance.randbytes(16)).decode()} of {name('_')}.pt"
        yield data(chance.randint(60, 3000))
        yield f"data:image/png;base64,{data(chance.randint(20, 300))}"
        image = data(600)
        yield "\n".join(image[at : at + 76] for at in range(0, len(image), 76))
        yield f"models--{name()}--{name()}/snapshots/{hexadecimal(40)}/model.safetensors"
        yield f"/data/{name('/')}/{name('_')}_{step:09d}.safetensors"
        yield f"events.out.tfevents.{now.timestamp():.0f}.{name()}.{step}.0"
        yield f"{now.isoformat()} step={step} loss={chance.random():.6f} lr={chance.random():.3e}"
        yield f"{name('_')}_lr{chance.random():.0e}_bs{step % 512}_seed{step}_{now:%Y-%m-%dT%H-%M-%S}"
        yield f"https://huggingface.co/{name()}/{name()}/resolve/{hexadecimal(40)}/{name('_')}.safetensors"
        yield f"https://example.com/{name('/')}?page={step}&sort={name('_')}#L{step}"
        yield f"ampere_bf16_s16816gemm_bf16_{step % 512}x128_ldg8_f2f_stages_64x3_{some('nt', 2)}"
        yield f"_ZN2at6native{step % 30}{name('_')}kernel_implILi{step}EEEvNS_14TensorIteratorE"
        yield f"torchinductor_bob/{some(LETTERS, 2)}/c{some(LETTERS + '234567', 51)}.py"
        yield f"triton/cache/{some(LETTERS.upper() + '234567', 52)}/kernel.cubin"
        yield f"model.layers.{step % 80}.self_attn.{name('_')}_proj.lora_A.weight"
        yield " ".join(chance.choices(WORDS, k=12))


def real_strings(chance, most):
    """Yield names, paths and checksums of what is installed here."""
    installed = sorted((file for one in distributions() for file in islice(one.files or (), 100)), key=str)
    for file in chance.sample(installed, min(most, len(installed))):
        yield f"{file},{file.hash.mode}={file.hash.value}" if file.hash else str(file)
    files = [*Path(json.__file__).parents[1].glob("*.py"), *(file.locate() for file in installed)]
    for path in chance.sample(sorted(map(str, files)), min(most // 8, len(files))):
        yield path
        if path.endswith(".py") and os.path.isfile(path):
            source = Path(path).read_text("utf-8", "replace")[:100_000]
            found = sorted(set(re.findall(r"[A-Za-z_][\w.-]{17,}", source)))
            # Not all of them: one file may be a font or a picture in Base64.
            yield from chance.sample(found, min(20, len(found)))


def test_one_ordinary_text_in_a_thousand_at_most_is_taken_for_a_secret(record_property):
    chance = random.Random(20240607)
    count = longer(5_000, 50_000)
    texts = [*islice(dict.fromkeys(real_strings(chance, count // 6)), count // 2)]
    texts += islice(made_up(chance), count - len(texts))
    masker = Masker({})
    wrong = [text for text in texts if masker.mask(text) != text]

    assert len(wrong) <= count // 1_000, wrong
    record_property("measured", f"{len(wrong)} of {len(texts):,} ordinary texts are masked")
