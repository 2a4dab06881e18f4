from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from tests.lengths import in_make_faults
from tests.project.markdown import ROOT
from tests.waiting import wait_until
from toolkit.telemetry.runfolder.manifest import read_manifest


def make(*arguments):
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200)


def test_help_lists_the_targets():
    listed = make("help").stdout
    targets = "run dashboard fleet test faults fuzz docs check bench evaluate release-check lock clean"

    assert [target for target in targets.split() if f"make {target} " not in listed] == []


def test_a_missing_python_gives_a_clear_message(tmp_path):
    finished = make("check", "PYTHON=no-such-python", f"VENV={tmp_path / 'venv'}")

    assert finished.returncode != 0
    assert "Python 3.10 or newer is needed, and 'no-such-python' is not one" in finished.stderr


def test_a_python_without_venv_gives_a_clear_message_and_leaves_nothing_behind(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$1" in -m) mkdir -p "$3/bin"; touch "$3/bin/python"; exit 1;; esac\n')
    python.chmod(0o755)
    finished = make("check", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")

    assert finished.returncode != 0
    assert "apt install python3-venv" in finished.stderr
    assert not (tmp_path / "venv").exists()


def test_changed_requirements_are_installed_again(tmp_path):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    stamp = [
        line.split()[-1]
        for line in make("-n", "check", f"VENV={venv}").stdout.splitlines()
        if line.startswith("touch")
    ]
    [path] = stamp
    open(path, "w").close()

    assert "pip install" not in make("-n", "check", f"VENV={venv}").stdout
    assert "pip install" in make("-n", "check", f"VENV={venv}", "-W", "requirements/dev.txt").stdout


def installed_with_pip_saying(words, folder, system="3.11-linux-x86_64", extras="dev"):
    """Have make set up `folder` with a Python whose pip refuses the lock file with these words."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"  -c*) printf {system};;\n"
        f"  *--require-hashes*) eval cp '\"$'$#'\"' {folder}/asked; echo '{words}' >&2; [ -z '{words}' ];;\n"
        "esac\n"
    )
    python.chmod(0o755)
    stamp = folder / f".installed-{extras}"
    return make(str(stamp), f"VENV={folder}"), stamp


@pytest.mark.parametrize(
    ("system", "is_locked"),
    [("3.13-linux-aarch64", True), ("3.10-linux-x86_64", False), ("3.11-darwin-arm64", False)],
)
def test_where_nothing_is_locked_one_line_says_so(tmp_path, system, is_locked):
    finished, stamp = installed_with_pip_saying("", tmp_path, system)

    assert stamp.exists()
    assert (tmp_path / "asked").exists() is is_locked
    assert (f"Nothing is locked for {system}: the newest versions" in finished.stderr) is not is_locked


def test_make_run_installs_only_what_training_and_dashboard_need(tmp_path):
    planned = make("-n", "run", f"VENV={tmp_path / 'venv'}").stdout
    _, stamp = installed_with_pip_saying("", tmp_path, extras="training-dashboard")
    wanted = re.findall(r"^([\w.-]+)==", (tmp_path / "asked").read_text(), re.MULTILINE)

    assert '.[training,dashboard]"' in planned
    assert "pip install -q" not in planned
    assert stamp.exists()
    assert {"orjson", "safetensors", "streamlit"} <= {*wanted}
    assert not {"pytest", "transformers", "wandb"} & {*wanted}
    assert len(wanted) < 60


def test_a_file_with_another_hash_is_not_installed(tmp_path):
    finished, stamp = installed_with_pip_saying("THESE PACKAGES DO NOT MATCH THE HASHES", tmp_path)

    assert finished.returncode != 0
    assert "DO NOT MATCH" in finished.stderr
    assert not stamp.exists()


def test_without_a_locked_version_the_newest_are_installed(tmp_path):
    finished, stamp = installed_with_pip_saying("No matching distribution found for orjson", tmp_path)

    assert finished.returncode == 0, finished.stderr
    assert "No matching distribution found for orjson" in finished.stderr
    assert "so the newest versions are" in finished.stderr
    assert stamp.exists()


def test_continuous_integration_runs_make_test():
    script = ROOT / ".ci" / "run"

    assert os.stat(script).st_mode & stat.S_IXUSR
    assert "make test" in script.read_text(encoding="utf-8")


def test_test_runs_the_checks_and_then_pytest_with_what_it_is_given():
    planned = make("-n", "test", "ARGS=-k mine").stdout

    places = [planned.index(each) for each in ("ruff check", "mypy", "lint-imports", "-n 3 --dist loadfile")]
    assert places == sorted(places)
    assert planned.rstrip().endswith("-k mine")


STAND_IN = f"""#!{sys.executable}
import os, signal, sys, time
ended = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: ended.append(signal.Signals(number).name))
is_training = sys.argv[1] == "run.py"
print(sys.argv[1], "begins", *[os.environ.get("TELEMETRY_DASHBOARD_TOKEN", "without")] * is_training, flush=True)
if "FAILS" in os.environ and is_training:
    sys.exit(7)
while not ended:
    time.sleep(0.01)
time.sleep(0.3)
print(sys.argv[1], "has saved after", *ended, flush=True)
"""


@pytest.fixture
def start_make_run(tmp_path):
    """Start `make run` as a terminal does, with a script as its Python; what is left of it in the end is killed."""
    started = []

    def start(python, *arguments, **environ):
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").write_text(python)
        (tmp_path / "bin" / "python").chmod(0o755)
        (tmp_path / ".installed-training-dashboard").touch()
        run = subprocess.Popen(
            ["make", "run", f"VENV={tmp_path}", *arguments],
            cwd=ROOT,
            env={**os.environ, "TELEMETRY_DASHBOARD_TOKEN": "x" * 24, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(run)
        return run

    yield start
    for run in started:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


def send(run, number):
    """Send SIGINT to the whole group, as a terminal does, and another signal to `make` alone."""
    if number == signal.SIGINT:
        os.killpg(run.pid, number)
    else:
        run.send_signal(number)


@pytest.fixture
def make_run(start_make_run):
    """Start it with programs that begin, and end when they get a signal."""

    def start(**environ):
        run = start_make_run(STAND_IN, **environ)
        begun = sorted(run.stdout.readline() for _ in range(2))
        assert begun == ["run.py begins without\n", "run_dashboard.py begins\n"]
        return run

    return start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_make_run_ends_with_both_programs_which_get_a_signal_once(make_run, number):
    run = make_run()
    send(run, number)
    rest, _ = run.communicate(timeout=200)

    for program in ("run.py", "run_dashboard.py"):
        assert f"{program} has saved after {number.name}\n" in rest


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=in_make_faults)])
def test_make_run_ends_in_the_middle_of_the_real_training_which_saves(tmp_path, start_make_run, number):
    example = ROOT / "config" / "examples" / "train_lora_tiny_cpu_with_telemetry.yaml"
    config = example.read_text().replace('"output"', f'"{tmp_path}/output"')
    (tmp_path / "config.yaml").write_text(config.replace('"./logs"', f'"{tmp_path}/logs"'))
    run = start_make_run(
        f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        f"CONFIG={tmp_path}/config.yaml",
        TELEMETRY_LOG_DIR=str(tmp_path / "logs"),
    )
    printed = []
    while not (printed and printed[-1].startswith("[run] step 10/")):
        printed.append(run.stdout.readline())
        assert printed[-1], printed
    send(run, number)
    rest, _ = run.communicate(timeout=200)

    assert f"{number.name}: saving after this step" in rest
    session = read_manifest(tmp_path / "logs" / "tiny_neon_lora").sessions[-1]
    assert session.status == "stopped"
    assert list((tmp_path / "output" / "tiny_neon_lora").glob("*.pt"))
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)


@pytest.mark.parametrize(
    ("program", "module"),
    [("run.py", "toolkit/telemetry/trainer/command"), ("run_dashboard.py", "dashboard/launcher")],
)
def test_ctrl_c_ends_a_program_that_make_run_has_only_just_started(tmp_path, program, module):
    """A shell starts it so that it ignores Ctrl-C, and its imports take seconds."""
    stand_in = tmp_path / f"{module}.py"
    stand_in.parent.mkdir(parents=True)
    for folder in stand_in.relative_to(tmp_path).parents[:-1]:
        (tmp_path / folder / "__init__.py").touch()
    stand_in.write_text(
        "import signal\nprint(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)\nmain = lambda *_, **__: 0\n"
    )
    (tmp_path / program).write_text((ROOT / program).read_text())
    shell = subprocess.run(
        ["sh", "-c", f"{sys.executable} {program} & wait"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert (shell.stdout, shell.stderr) == ("False\n", "")


def test_make_run_keeps_the_pages_of_a_failed_training_and_says_in_the_end_that_it_failed(make_run):
    run = make_run(FAILS="yes")
    # The shell, and the pages.
    wait_until(lambda: len(psutil.Process(run.pid).children(recursive=True)) == 2)
    send(run, signal.SIGINT)
    rest, _ = run.communicate(timeout=200)

    assert "run_dashboard.py has saved after SIGINT\n" in rest
    assert "Error 7" in rest
