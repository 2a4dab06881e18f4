from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest

from tests.waiting import wait_until
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine import environment, start_look
from toolkit.telemetry.logger.machine.environment import describe_environment
from toolkit.telemetry.logger.machine.start_look import look_at_machine
from toolkit.telemetry.runfolder.process import process_began

TOKEN = "hf_" + "a1B2c3D4e5" * 3
PATIENCE_S = 100.0


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    git(tmp_path, "init")
    (tmp_path / "train.py").write_text("pass\n")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-m", "first")
    monkeypatch.chdir(tmp_path)
    # Else a script that another test ran in this process is looked at.
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    return tmp_path


def test_the_machine_and_the_software_are_described():
    guard = Guard()

    described = describe_environment(guard)

    assert described["python"] == platform.python_version()
    assert described["pid"] == os.getpid()
    assert described["packages"]["torch"].startswith("2.")
    assert "diffusers" not in described["packages"]
    assert described["cpu"]["logical"] == os.cpu_count()
    assert described["cpu"]["model"]
    assert described["memory_gb"] == pytest.approx(psutil.virtual_memory().total / 1024**3, abs=0.01)
    assert described["process_started"] == pytest.approx(process_began(os.getpid()), abs=0.01)
    assert isinstance(described["accelerators"], list)
    assert "unanswered" not in described
    assert guard.counts == {}
    json.dumps(described, allow_nan=False)


def test_secrets_on_the_command_line_are_masked(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--hf-token", "abc", f"--note={TOKEN}", "--lr", "1e-4"])

    assert describe_environment()["command_line"] == [
        "train.py",
        "--hf-token",
        "***",
        "--note=***",
        "--lr",
        "1e-4",
    ]


def test_the_path_of_the_interpreter_is_not_recorded():
    assert sys.executable not in json.dumps(describe_environment())


def commit_of(folder):
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=folder, text=True).strip()


def test_commit_and_branch_are_read_and_no_program_is_started(repository, monkeypatch):
    commit = commit_of(repository)
    monkeypatch.setattr(subprocess, "Popen", None)

    assert describe_environment()["git"] == {"commit": commit, "branch": "main"}


def test_a_commit_is_found_in_packed_references_in_a_worktree_and_without_a_branch(repository, monkeypatch):
    git(repository, "pack-refs", "--all")
    git(repository, "worktree", "add", "-b", "team/other", "aside")
    commit = commit_of(repository)
    packed = describe_environment()["git"]
    git(repository, "checkout", "--detach")
    detached = describe_environment()["git"]
    monkeypatch.chdir(repository / "aside")
    aside = describe_environment()["git"]

    assert packed == {"commit": commit, "branch": "main"}
    assert detached == {"commit": commit}
    assert aside == {"commit": commit, "branch": "team/other"}


def test_a_repository_without_a_commit_is_not_described(tmp_path, monkeypatch):
    git(tmp_path, "init")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)

    assert "git" not in describe_environment()


@pytest.mark.parametrize(
    ("url", "recorded"),
    [
        (f"https://someone:{TOKEN}@example.org/a/b.git", "https://example.org/a/b.git"),
        (f"https://{TOKEN}@example.org/a/b.git", "https://example.org/a/b.git"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
    ],
)
def test_a_remote_is_recorded_without_its_login(repository, url, recorded):
    git(repository, "remote", "add", "upstream", "https://example.org/other.git")
    git(repository, "remote", "add", "origin", url)

    assert describe_environment()["git"]["remote"] == recorded


def test_a_part_that_fails_fails_alone(monkeypatch):
    def broken():
        raise RuntimeError("no")

    guard = Guard()
    monkeypatch.setitem(environment._PARTS, "cpu", broken)

    described = describe_environment(guard)

    assert "cpu" not in described
    assert described["memory_gb"] > 0
    assert guard.counts == {"describing the environment (cpu): RuntimeError": 1}


def test_a_part_that_hangs_is_named_and_one_that_failed_before_it_is_not(monkeypatch):
    released = threading.Event()
    parts = {"cpu": lambda: 1 / 0, "os": lambda: released.wait(PATIENCE_S), "packages": dict}
    monkeypatch.setattr(environment, "_PARTS", parts)

    monkeypatch.setattr(start_look, "_MACHINE_LATEST_S", 0.0)

    look = look_at_machine(Guard())
    look.start()
    wait_until(lambda: look.result() == {"unanswered": ["os", "packages"]})
    is_done = look.is_done(0.0)
    released.set()

    assert is_done


def test_nvidia_gpus_are_named_through_nvml_in_the_scripts_order(make_gpu, make_nvml, monkeypatch):
    nvml = make_nvml(make_gpu("GPU-1", name="NVIDIA A"), make_gpu("GPU-2", name="NVIDIA B"))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")

    described = describe_environment()["accelerators"]

    assert described == [
        {"index": 0, "name": "NVIDIA B", "memory_gb": 80.0, "kind": "cuda"},
        {"index": 1, "name": "NVIDIA A", "memory_gb": 80.0, "kind": "cuda"},
    ]
    assert not nvml.is_open


@pytest.fixture
def only_torch(monkeypatch):
    """No NVML, and a torch that says only what a test puts there."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for module in ("torch.cuda", "torch.backends.mps"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(hip=None)))


def backend(name):
    properties = SimpleNamespace(name=name, total_memory=16 * 1024**3)
    return SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 1, get_device_properties=lambda index: properties
    )


def test_amd_gpus_are_recognised_through_torch(monkeypatch, only_torch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(hip="6.2")))
    monkeypatch.setitem(sys.modules, "torch.cuda", backend("AMD Instinct MI300X"))

    assert describe_environment()["accelerators"] == [
        {"index": 0, "name": "AMD Instinct MI300X", "memory_gb": 16.0, "kind": "rocm"}
    ]


def test_apple_gpus_are_recognised_through_torch(monkeypatch, only_torch):
    monkeypatch.setitem(sys.modules, "torch.backends.mps", SimpleNamespace(is_available=lambda: True))
    monkeypatch.setitem(sys.modules, "torch.mps", SimpleNamespace(recommended_max_memory=lambda: 8 * 1024**3))

    (described,) = describe_environment()["accelerators"]

    assert (described["kind"], described["memory_gb"]) == ("mps", 8.0)
    assert described["name"]


def test_a_torch_that_has_initialised_nothing_is_left_alone(monkeypatch, only_torch):
    sleeping = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch.cuda", sleeping)

    assert describe_environment()["accelerators"] == []
