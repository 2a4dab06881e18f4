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

from tests.project import lock_file
from tests.project.markdown import ROOT
from tests.project.release_check import AI_TOOLKIT, OWN_DASHBOARD, OWN_LOOP, environment, tracked_files

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
    for package in ("toolkit", "ai_toolkit_telemetry_dashboard"):
        # What an earlier `pip install .` leaves.
        (source / "build" / "lib" / package).mkdir(parents=True)
        (source / "build" / "lib" / package / "deleted_since.py").touch()
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
    """A virtual environment that has the wheel's files, and our packages' dependencies, but not this checkout."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    wheel.extractall(packages)
    # Of a folder that a .pth adds, the .pth files are not read: the editable install stays out.
    (folder / packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
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


COMMAND = "import sys; from ai_toolkit_telemetry import telemetry; sys.exit(telemetry())"
"""What the installed program `telemetry` does, with the current folder first on the path too."""


def test_the_wheel_leaves_the_name_dashboard_to_others(wheel):
    files = [name for name in wheel.namelist() if ".dist-info/" not in name]
    [listed] = [name for name in wheel.namelist() if name.endswith("top_level.txt")]

    assert {name.split("/")[0] for name in files} == {
        *("ai_toolkit_telemetry.py", "ai_toolkit_telemetry.pth", "ai_toolkit_telemetry_dashboard", "toolkit")
    }
    assert "dashboard" not in wheel.read(listed).decode().split()


def test_the_wheel_has_no_module_that_was_deleted_since_an_earlier_build(wheel):
    assert [name for name in wheel.namelist() if "deleted_since" in name] == []


def test_the_wheel_has_weights_examples_and_scripts_of_the_pages(wheel):
    files = set(wheel.namelist())

    assert "toolkit/py.typed" in files
    assert any(re.fullmatch(r"toolkit/telemetry/trainer/weights/.*\.safetensors", name) for name in files)
    for path in (ROOT / "config" / "examples").glob("*.yaml"):
        assert wheel.read(f"toolkit/telemetry/trainer/examples/{path.name}") == path.read_bytes()
    for path in (ROOT / "dashboard").rglob("*"):
        if path.suffix in (".py", ".js", ".png"):
            assert f"ai_toolkit_telemetry_dashboard/{path.relative_to(ROOT / 'dashboard')}" in files


def test_the_wheel_installs_both_commands(wheel):
    [name] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    lines = wheel.read(name).decode().split("\n")

    assert "telemetry = ai_toolkit_telemetry:telemetry" in lines
    assert "telemetry-dashboard = ai_toolkit_telemetry:telemetry_dashboard" in lines


def test_commands_and_scripts_work_in_an_ai_toolkit_checkout(in_folder):
    in_folder(AI_TOOLKIT, "own_script.py")
    for command in (("-c", COMMAND), ("-m", "toolkit.telemetry")):
        printed = in_folder({}, *command, "show", "--json", PYTHONPATH=".")
        assert [run["name"] for run in json.loads(printed)["runs"]] == ["own_loop"]
    assert "usage: telemetry dashboard" in in_folder({}, "-c", COMMAND, "dashboard", "--help", PYTHONPATH=".")
    assert "usage: telemetry-dashboard" in in_folder({}, "-m", "dashboard", "--help", PYTHONPATH=".")


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


def test_a_checkout_with_its_own_telemetry_keeps_it(in_folder):
    own = {"toolkit/telemetry.py": "OWN = 'of the fork'\n"}

    assert "of the fork" in in_folder(
        {**AI_TOOLKIT, **own}, "-c", "import toolkit.telemetry; print(toolkit.telemetry.OWN)"
    )


def test_other_modules_that_their_toolkit_lacks_stay_missing(in_folder):
    code = (
        "import importlib.util as u;"
        "print(u.find_spec('toolkit.telemetry.core'), u.find_spec('toolkit.telemetry.timing'))"
    )

    assert in_folder(AI_TOOLKIT, "-c", code) == "None None\n"


@pytest.mark.parametrize("init", [{}, {"dashboard/__init__.py": ""}])
def test_a_dashboard_of_the_user_wins(in_folder, init):
    in_folder({**OWN_DASHBOARD, **init}, "main.py")
    printed = in_folder({}, "-c", COMMAND, "dashboard", "--help", PYTHONPATH=".")
    assert "usage: telemetry dashboard" in printed


def test_a_dashboard_that_a_later_finder_has_wins(in_folder):
    code = (
        "import sys, importlib.machinery as m\n"
        "class Late:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        return m.PathFinder.find_spec(name, ['late']) if name == 'dashboard' else None\n"
        "sys.meta_path.append(Late)\n"
        "import dashboard; print(dashboard.OWN)"
    )

    assert in_folder({"late/dashboard/__init__.py": "OWN = 'mine'"}, "-c", code) == "mine\n"


def test_old_imports_work_where_there_is_no_other_dashboard(in_folder):
    code = "import dashboard.launcher, toolkit.telemetry.cli.main; print(dashboard.__file__)"

    assert "ai_toolkit_telemetry_dashboard" in in_folder({}, "-c", code)


def test_nothing_of_ours_is_imported_when_python_starts(in_folder):
    code = "import sys; print([name for name in sys.modules if name.split('.')[0] in %r])"
    ours = ("toolkit", "dashboard", "ai_toolkit_telemetry")

    assert in_folder({}, "-c", code % (ours,)) == "[]\n"


def test_the_installed_command_logs_trains_and_copies_the_examples(in_folder, tmp_path):
    in_folder({}, "-c", OWN_LOOP)
    printed = in_folder({}, "-m", "toolkit.telemetry.cli", "ls", "--json")
    assert [run["name"] for run in json.loads(printed)["runs"]] == ["own_loop"], printed
    in_folder({}, "-m", "ai_toolkit_telemetry", "train", "--copy-examples", "mine")
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {
        path.name for path in (ROOT / "config" / "examples").iterdir()
    }


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
