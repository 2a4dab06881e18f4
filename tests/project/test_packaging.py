from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.project import lock_file
from tests.project.markdown import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def names_in(requirements):
    return {
        re.split(r"[<>=!~\[; ]", line, maxsplit=1)[0].lower()
        for line in requirements
        if line and line[0] != "#"
    }


def extra(name):
    [file] = PROJECT["tool"]["setuptools"]["dynamic"]["optional-dependencies"][name]["file"]
    return names_in((ROOT / file).read_text(encoding="utf-8").splitlines())


def test_the_bare_install_is_four_small_packages():
    assert names_in(PROJECT["project"]["dependencies"]) == {"orjson", "psutil", "nvidia-ml-py", "pyyaml"}


def test_the_dashboard_opens_without_torch():
    assert "streamlit" in extra("dashboard")
    assert "torch" not in extra("dashboard")


def test_the_extras_are_those_the_documents_name():
    extras = PROJECT["tool"]["setuptools"]["dynamic"]["optional-dependencies"]

    assert set(extras) == {
        *("dashboard", "login", "training", "tensorboard", "wandb", "otlp", "fleet", "usage"),
        *("integrations", "dev", "bench"),
    }


def test_torch_is_pinned_for_make_and_open_for_users():
    constraints = (ROOT / "requirements" / "constraints.txt").read_text(encoding="utf-8")
    training = (ROOT / "requirements" / "training.txt").read_text(encoding="utf-8")

    assert re.search(r"^torch==", constraints, re.MULTILINE)
    assert not re.search(r"^torch==", training, re.MULTILINE)


def test_importing_the_logger_imports_nothing_heavy():
    heavy = ["torch", "numpy", "pandas", "tensorboard", "wandb", "streamlit", "yaml"]
    code = f"from toolkit.telemetry import *; import sys; print([name for name in {heavy} if name in sys.modules])"
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert finished.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of `pip install .`, built from a copy so that nothing is left in the checkout."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed in this environment, and building would fetch it")
    source = tmp_path_factory.mktemp("source") / "project"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".*", "__pycache__", "logs", "output", "build", "dist", "*.egg-info"),
    )
    target = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(target),
        ".",
    ]
    finished = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    [path] = target.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_has_the_packages_the_weights_and_nothing_else(wheel):
    files = [name for name in wheel.namelist() if ".dist-info/" not in name]

    assert {name.split("/")[0] for name in files} <= {"toolkit", "dashboard"}
    assert "toolkit/py.typed" in files
    assert [
        name
        for name in files
        if name.startswith("toolkit/trainer/weights/") and name.endswith(".safetensors")
    ]


def test_the_wheel_installs_the_telemetry_command(wheel):
    [name] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]

    assert "telemetry = toolkit.cli.main:main" in wheel.read(name).decode()


def test_the_lock_file_has_what_make_installs_and_agrees_with_the_pins():
    locks = sorted((ROOT / "requirements").glob("lock-*.txt"))
    constraints = (ROOT / "requirements" / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", constraints, re.MULTILINE))

    assert locks
    for lock in locks:
        entries = re.findall(
            r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$",
            lock.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        versions = {name: version for name, version, _ in entries}
        assert len(entries) == lock.read_text(encoding="utf-8").count("==")
        assert "torch" not in versions
        assert {name: versions[name] for name in pins if name != "torch"} == {
            name: pin for name, pin in pins.items() if name != "torch"
        }
        assert names_in(PROJECT["project"]["dependencies"]) | extra("dev") <= {*versions}


def test_make_looks_for_the_lock_file_where_it_is_written():
    [code] = re.findall(r"^SYSTEM := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert lock_file.lock_file().name == f"lock-{finished.stdout}.txt"


def test_streamlit_has_an_upper_bound_for_users():
    text = (ROOT / "dashboard_requirements.txt").read_text(encoding="utf-8")

    assert re.search(r"^streamlit>=[\d.]+,<[\d.]+$", text, re.MULTILINE)
