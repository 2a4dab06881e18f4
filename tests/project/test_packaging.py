from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

from tests.lengths import in_make_faults
from tests.project import lock_file
from tests.project.markdown import ROOT
from tests.project.release_check import OWN_LOOP, environment, tracked_files

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
        *("dashboard", "login", "training", "tensorboard", "wandb", "otlp", "fleet"),
        *("metrics", "sql", "mcp", "top", "integrations", "dev", "bench"),
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


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of a new environment with the wheel, and our packages' dependencies, but not this checkout."""
    return environment_with(tmp_path_factory.mktemp("installed"), wheel.filename)


def environment_with(folder, *wheels):
    venv.create(folder, symlinks=True)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    # Of a folder that a .pth adds, the .pth files are not read: the editable install stays out.
    (folder / packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    for path in wheels:
        # As pip does it, which takes seconds for that.
        zipfile.ZipFile(path).extractall(folder / packages)
    return folder / "bin" / "python"


@pytest.fixture
def in_folder(installed, tmp_path):
    """Run the installed Python with arguments in a folder with these files, and return what it printed."""

    def run(files, *arguments, **environ):
        write(tmp_path, files)
        finished = subprocess.run(
            [installed, *arguments], cwd=tmp_path, env=environment(environ), capture_output=True, text=True
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return run


def write(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


COMMAND = "import sys; from ai_toolkit_telemetry.commands import telemetry; sys.exit(telemetry())"
"""What the installed program `telemetry` does, with the current folder first on the path too."""

LOOP = """
from ai_toolkit_telemetry import TelemetryLogger
with TelemetryLogger("own_loop", log_dir="logs") as log:
    log.log_step(1, train_loss=0.5)
"""
AI_TOOLKIT = {
    "run.py": "",
    "jobs/__init__.py": "",
    "toolkit/__init__.py": "OWN = 'ai-toolkit'\n",
    "toolkit/job.py": "",
    "toolkit/config.py": "",
    "toolkit/logging_aitk.py": "",
}
OWN_DASHBOARD = {
    "dashboard/pages.py": "OWN = True\n",
    "main.py": "from dashboard.pages import OWN\nassert OWN\n",
}
# Each in its turn is the project of someone who has the wheel installed, and what that project's script does.
PROJECTS = {
    "a folder without __init__.py": (
        {"toolkit/utils.py": "OWN = 1\n"},
        "import toolkit.utils\nfrom toolkit.telemetry import read_run\n" + LOOP + "import toolkit.utils\n",
    ),
    "a package with rooms of our names": (
        {f"toolkit/{name}/__init__.py": "OWN = 1\n" for name in (".", "core", "runs", "cli")},
        LOOP + "import toolkit, toolkit.core, toolkit.runs, toolkit.cli\n"
        "assert toolkit.OWN == toolkit.core.OWN == toolkit.runs.OWN == toolkit.cli.OWN == 1\n",
    ),
    "a module": ({"toolkit.py": "OWN = 1\n"}, "import toolkit\nassert toolkit.OWN == 1\n" + LOOP),
    "ai-toolkit": (AI_TOOLKIT, "import toolkit.config, toolkit\nassert toolkit.OWN == 'ai-toolkit'\n" + LOOP),
    "a folder called dashboard": (OWN_DASHBOARD, "from dashboard.pages import OWN\nassert OWN\n" + LOOP),
}


def test_the_wheel_has_two_names_and_one_of_them_is_shared(wheel):
    files = [name for name in wheel.namelist() if ".dist-info/" not in name]

    assert {name.split("/")[0] for name in files} == {"ai_toolkit_telemetry", "toolkit"}
    assert {name.split("/")[1] for name in files if name.startswith("toolkit/")} == {"telemetry"}
    assert [name for name in files if name.endswith(".pth")] == []


def test_the_wheel_has_scripts_of_the_pages_and_not_the_example_trainer(wheel):
    files = set(wheel.namelist())

    assert "toolkit/telemetry/py.typed" in files
    assert [name for name in files if "trainer/" in name or name.endswith((".safetensors", ".yaml"))] == []
    for path in (ROOT / "dashboard").rglob("*"):
        if path.suffix in (".py", ".js", ".css", ".png"):
            assert f"ai_toolkit_telemetry/dashboard/{path.relative_to(ROOT / 'dashboard')}" in files


def test_the_wheel_installs_both_commands(wheel):
    [name] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    lines = wheel.read(name).decode().split("\n")

    assert "telemetry = ai_toolkit_telemetry.commands:telemetry" in lines
    assert "telemetry-dashboard = ai_toolkit_telemetry.commands:telemetry_dashboard" in lines


@pytest.mark.parametrize("project", PROJECTS)
def test_scripts_and_commands_work_in_every_project_which_keeps_its_own(project, in_folder):
    files, script = PROJECTS[project]
    in_folder({**files, "own_script.py": script}, "own_script.py")
    by_name = "import sys\nassert 'toolkit.telemetry.integrations' in sys.modules\n"
    in_folder({"by_name.py": by_name}, "-m", "ai_toolkit_telemetry.run", "by_name.py")

    printed = in_folder({}, "-c", COMMAND, "show", "--json", PYTHONPATH=".")
    assert [run["name"] for run in json.loads(printed)["runs"]] == ["own_loop"]
    if "dashboard" in project:
        asked = in_folder({}, "-c", COMMAND, "dashboard", "--help", PYTHONPATH=".")
        assert "usage: telemetry dashboard" in asked


def test_a_project_with_its_own_telemetry_keeps_it_and_ours_says_so(in_folder):
    files = {**AI_TOOLKIT, "toolkit/telemetry.py": "OWN = 'of the fork'\n"}
    code = (
        "import toolkit.telemetry; print(toolkit.telemetry.OWN)\n"
        "try:\n    from ai_toolkit_telemetry import TelemetryLogger\n"
        "except ImportError as error:\n    print(error)"
    )
    printed = in_folder(files, "-c", code)

    assert printed.startswith("of the fork\ntoolkit.telemetry is this project's own")
    assert json.loads(in_folder({}, "-c", COMMAND, "ls", "--formats", "--json", PYTHONPATH="."))


def test_commands_of_this_checkout_work_in_an_ai_toolkit_checkout(tmp_path):
    write(tmp_path, AI_TOOLKIT)
    finished = subprocess.run(
        [sys.executable, "-c", COMMAND, "ls", "--formats", "--json"],
        cwd=tmp_path,
        env=environment({"PYTHONPATH": f".{os.pathsep}{ROOT}"}),
        capture_output=True,
        text=True,
    )

    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)


@pytest.mark.parametrize("ours_first", [pytest.param(True, marks=in_make_faults), False])
def test_another_distribution_with_a_package_toolkit_lives_next_to_ours(ours_first, wheel, tmp_path):
    theirs = tmp_path / "theirs-1-py3-none-any.whl"
    files = {
        "toolkit/__init__.py": "OWN = 1\n",
        "theirs-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: theirs\nVersion: 1\n",
        "theirs-1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(theirs, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr("theirs-1.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
    both = [wheel.filename, theirs] if ours_first else [theirs, wheel.filename]
    python = environment_with(tmp_path / "environment", *both)
    use = {
        "theirs": "import toolkit; assert toolkit.OWN == 1",
        "ai-toolkit-telemetry": "from toolkit.telemetry import read_run; from ai_toolkit_telemetry import read_run",
    }

    for code in use.values():
        subprocess.run([python, "-c", code], cwd=tmp_path, env=environment({}), check=True)
    first, second = use if ours_first else reversed(use)
    command = [sys.executable, "-m", "pip", "--python", python, "uninstall", "--quiet", "--yes", first]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    subprocess.run([python, "-c", use[second]], cwd=tmp_path, env=environment({}), check=True)


def test_a_start_of_python_has_nothing_of_ours(in_folder):
    code = "import sys; print([name for name in sys.modules if 'toolkit' in name], sys.meta_path)"
    printed = in_folder({}, "-X", "importtime", "-c", code)

    assert printed.startswith("[] ")
    assert "toolkit" not in printed


def test_a_room_loads_neither_the_logger_nor_the_names(in_folder):
    code = (
        "import sys, toolkit.telemetry.runfolder.metrics; print([n for n in sys.modules if 'telemetry' in n])"
    )

    printed = in_folder({}, "-c", code)
    assert "logger" not in printed
    assert "integrations" not in printed


def test_the_installed_command_lists_runs(in_folder, tmp_path):
    in_folder({}, "-c", OWN_LOOP)
    printed = in_folder({}, "-m", "toolkit.telemetry.cli", "ls", "--json")
    assert [run["name"] for run in json.loads(printed)["runs"]] == ["own_loop"], printed


def test_the_source_distribution_has_every_folder():
    try:
        tracked = tracked_files()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    grafted = set(
        re.findall(r"^(?:graft|recursive-include) (\S+)", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE)
    )

    assert {name.split("/")[0] for name in tracked if "/" in name} == grafted


def test_the_lock_file_has_what_make_installs_and_agrees_with_the_pins():
    locks = sorted((ROOT / "requirements").glob("lock-*.txt"))
    assert locks == [lock_file.LOCK_FILE]
    constraints = (ROOT / "requirements" / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", constraints, re.MULTILINE))

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


def test_make_finds_the_systems_that_are_locked():
    [code] = re.findall(r"^SYSTEM := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    [systems] = re.findall(r"^# is for (.*)$", lock_file.LOCK_FILE.read_text(encoding="utf-8"), re.MULTILINE)

    assert len(systems.split()) == len(lock_file.TARGETS) == 6
    if sys.platform == "linux" and sys.version_info[:2] in lock_file.PYTHONS:
        assert finished.stdout in systems.split()


def test_streamlit_has_an_upper_bound_for_users():
    text = (ROOT / "dashboard_requirements.txt").read_text(encoding="utf-8")

    assert re.search(r"^streamlit>=[\d.]+,<[\d.]+$", text, re.MULTILINE)
