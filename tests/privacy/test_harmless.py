"""What every machine has, and is no secret, stays readable: in a run's own files, and in what is shared."""

from __future__ import annotations

import pytest

from toolkit.privacy.masking import mask_secrets
from toolkit.privacy.redaction import Redactor

PATHS = (
    *("/usr/share/dict/words", "/usr/share/zoneinfo/UTC", "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"),
    *("/usr/lib/python3.11/json/decoder.py", "/usr/lib/python3.11", "/usr/lib/python3.11/lib-dynload"),
    *("/usr/lib/python3/dist-packages/apt/cache.py", "/usr/lib64/python3.9/threading.py"),
    "/usr/local/lib/python3.10/dist-packages/torch/nn/modules/module.py",
    "/opt/conda/lib/python3.11/site-packages/torch/_tensor.py",
    *("/usr/bin/gcc", "/usr/bin/python3.11", "/usr/bin/nvidia-smi", "/bin/sh", "/usr/bin/env"),
    *("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/local/cuda/lib64/libcudart.so.12"),
    *("/usr/local/cuda-12.4/bin/nvcc", "/lib64/ld-linux-x86-64.so.2", "/usr/include/stdio.h"),
    *("/proc/self/status", "/proc/1234/maps", "/proc/sys/kernel/pid_max", "/sys/class/drm/card0"),
    *(
        "/etc/os-release",
        "/etc/hosts",
        "/etc/ssl/certs/ca-certificates.crt",
        "/dev/nvidia0",
        "/dev/dri/card1",
    ),
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
    *(
        "cache-key-v1-linux-x86_64",
        "test_live_reload_of_the_page",
        "s.startswith('x')",
        "AP50=0.4321",
        "eval/rouge-L",
    ),
)


@pytest.fixture
def redactor():
    return Redactor(environ={})


@pytest.mark.parametrize("texts", [PATHS, VERSIONS, SENTENCES], ids=["paths", "versions", "sentences"])
def test_a_harmless_text_stays_as_it_is_alone_and_in_a_sentence(texts, redactor):
    sentences = [form.format(text) for text in texts for form in ("{}", "could not open {}", "({})", "x={}")]

    assert [mask_secrets(text) for text in sentences] == sentences
    assert [redactor.redact_text(text) for text in sentences if "x=" not in text] == [
        text for text in sentences if "x=" not in text
    ]
    assert redactor.redact({"note": list(texts)}) == {"note": list(texts)}


def test_a_path_of_the_system_stays_in_a_stack(redactor):
    stack = 'File "/usr/lib/python3.11/threading.py", line 1016, in run'

    assert redactor.redact_text(stack) == stack


@pytest.mark.parametrize(
    "path",
    [
        *("/usr/share/orchid-merger/x.txt", "/usr/lib/orchid-merger/run.py", "/usr/local/orchid/x.csv"),
        *("/usr/share/../../home/jane/x", "/etc/orchid/keys.conf", "/dev/shm/orchid-merger", "/opt/orchid/x"),
        *("/usr/bin/orchid-merger", "/proc/1234/cwd/orchid-merger", "/sys/fs/cgroup/orchid-merger"),
    ],
)
def test_a_private_name_below_a_folder_of_the_system_is_still_replaced(path, redactor):
    shown = redactor.redact_text(f"could not open {path}")

    assert "orchid" not in shown
    assert "jane" not in shown


@pytest.mark.parametrize("name", ["cuda", "driver", "nvcc", "cudnn", "torch", "driver_version", "firmware"])
def test_a_version_under_a_name_that_has_versions_stays(name, redactor):
    assert redactor.redact({name: "12.4.99.1"}) == {name: "12.4.99.1"}


@pytest.mark.parametrize("text", ["connect to 12.4.99.1", "host 12.4.99.1", "12.4.99.1", "12.4.99.1:29500"])
def test_an_address_that_could_be_a_version_is_still_replaced(text, redactor):
    assert "12.4.99.1" not in redactor.redact_text(text)


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


def test_the_folder_is_a_path_where_it_is_shared(redactor):
    assert redactor.redact({"env": {"PWD": "/srv/orchid"}}) == {"env": {"PWD": "<path-1>"}}
