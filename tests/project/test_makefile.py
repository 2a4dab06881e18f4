from __future__ import annotations

import os
import stat
import subprocess

import pytest

from tests.project.markdown import ROOT


def make(*arguments):
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "target",
    [
        "run",
        "dashboard",
        "fleet",
        "test",
        "faults",
        "fuzz",
        "docs",
        "check",
        "bench",
        "diagnose-eval",
        "release-check",
        "lock",
        "clean",
    ],
)
def test_help_lists_the_targets(target):
    assert f"make {target} " in make("help").stdout


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


def installed_with_pip_saying(words, folder):
    """Have make set up `folder` with a Python whose pip refuses the lock file with these words."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        "  -c*) printf 3.11-linux-x86_64;;\n"
        f"  *--require-hashes*) echo '{words}' >&2; exit 1;;\n"
        "esac\n"
    )
    python.chmod(0o755)
    stamp = folder / ".installed-dev"
    return make(str(stamp), f"VENV={folder}"), stamp


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


def test_test_includes_the_checks(tmp_path):
    planned = make("-n", "test").stdout

    for tool in ("ruff check", "mypy", "lint-imports", "pytest"):
        assert tool in planned
