"""A package that is installed into a fresh environment brings one plug-in of each kind; broken ones are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from toolkit.telemetry.core.plugins import KINDS

ROOT = Path(__file__).parents[2]
PACKAGE = Path(__file__).parent / "plugin_package"
NAMES = {
    "importers": ("toylog", "FORMAT"),
    "mirrors": ("toy", "Mirror"),
    "samplers": ("toy", "Sampler"),
    "detectors": ("toy", "Detector"),
    "commands": ("toy", "COMMAND"),
}
LOSSES = [1.0, 2.0, 99.0, 3.0]
TRAIN = """
import sys
from toolkit.telemetry import TelemetryLogger
from tests.waiting import wait_until

mirrors = {"toy": {"file": "toy.json"}, "raises": True, "absent": True, "no_such": True}
with TelemetryLogger("r", log_dir=sys.argv[1], log_every=1, system_every=1.0, mirrors=mirrors) as log:
    for step, loss in enumerate(LOSSES, 1):
        log.log_step(step, train_loss=loss)
    wait_until(lambda: b"toy_temperature" in (log.run_folder / "metrics.jsonl").read_bytes(), timeout_s=120)
print(log.run_folder)
"""


def wheel(folder):
    """Write the wheel of the package by hand: to build one takes a network or a build tool."""
    path = folder / "toy_plugins-1.2-py3-none-any.whl"
    sections = []
    for kind, (name, value) in NAMES.items():
        ours, raising = (
            (f"TOY_{value}", f"RAISING_{value}") if value.isupper() else (f"Toy{value}", f"Raising{value}")
        )
        sections += [
            f"[telemetry.{kind}]",
            f"{name} = toy_plugins:{ours}",
            f"raises = toy_plugins:{raising}",
            "absent = toy_plugins.no_such_file:thing",
            "wrong = toy_plugins:NOT_A_PLUGIN",
        ]
    info = "toy_plugins-1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(PACKAGE / "toy_plugins" / "__init__.py", "toy_plugins/__init__.py")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-plugins\nVersion: 1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "\n".join(sections))
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return a function that runs Python in a fresh environment, in which the package is installed."""
    folder = tmp_path_factory.mktemp("plugins")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    program = folder / "env" / "bin" / "python"
    site = sysconfig.get_path("purelib", vars={"base": str(folder / "env")})
    # What the package and the commands need is in the environment of this test.
    Path(site, "others.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    install = ["-m", "pip", "--python", program, "install", "--no-deps", "--no-index", wheel(folder)]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    environ = {
        name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "TELEMETRY_PLUGINS")
    }

    def run(*arguments, **variables):
        return subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**environ, **variables},
            timeout=200,
        )

    return run


@pytest.fixture(scope="module")
def trained(python, tmp_path_factory):
    """Return what a training wrote and printed."""
    done = python("-c", TRAIN.replace("LOSSES", str(LOSSES)), str(tmp_path_factory.mktemp("logs")))
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    return (
        folder,
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()],
        done.stderr,
    )


def test_a_training_uses_mirror_sampler_and_detector_of_a_package(trained):
    folder, records, _ = trained

    assert json.loads((folder / "toy.json").read_text()) == len(records)
    assert any(record.get("toy_temperature") == 21.5 for record in records)
    assert [record["kind"] for record in records if record["event"] == "finding"] == ["toy_loss"]
    assert [record["train_loss"] for record in records if record["event"] == "step"] == LOSSES


def test_broken_ones_are_named_in_the_output_of_the_training(trained):
    *_, printed = trained

    for kind in ("mirrors", "samplers", "detectors"):
        assert f"'absent' ({kind}) of toy-plugins 1.2" in printed
        # A mirror that the options do not name is not even imported.
        assert (f"'wrong' ({kind}) of toy-plugins 1.2" in printed) is (kind != "mirrors")
    assert "writing to raises" in printed
    assert "sampling the plug-in 'raises' (samplers) of toy-plugins 1.2" in printed
    assert "with the plug-in 'raises' (detectors) of toy-plugins 1.2" in printed
    assert "no_such" in printed


def test_an_importer_and_a_command_of_a_package_work(python, tmp_path):
    (tmp_path / "one.toy").write_text("\n".join(map(str, LOSSES)))

    formats = python("-m", "toolkit.telemetry.cli", "ls", "--formats")
    listed = python("-m", "toolkit.telemetry.cli", "ls", str(tmp_path), "--json")
    shown = python("-m", "toolkit.telemetry.cli", "show", str(tmp_path / "one.toy"), "--json")
    said = python("-m", "toolkit.telemetry.cli", "toy", "--word", "hello")

    assert "logs of the toy tool (*.toy)" in formats.stdout
    assert '"toylog"' in listed.stdout
    assert "train_loss" in shown.stdout
    assert said.stdout == "the word is hello\n"
    assert "print a word (toy-plugins 1.2)" in python("-m", "toolkit.telemetry.cli", "--help").stdout
    assert "'absent' (importers) of toy-plugins 1.2 is skipped: ModuleNotFoundError" in listed.stderr


def test_a_command_that_raises_is_named(python):
    done = python("-m", "toolkit.telemetry.cli", "raises")

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "the plug-in 'raises' (commands) of toy-plugins 1.2: RuntimeError: this plug-in is broken"
    )


def test_each_is_listed_and_a_broken_one_with_its_problem(python):
    done = python("-m", "toolkit.telemetry.cli", "setup", "plugins", "--json")

    rows = {(row["kind"], row["name"]): row for row in json.loads(done.stdout)["plugins"]}
    assert done.returncode == 1
    assert set(rows) == {
        (kind, name) for kind in KINDS for name in (NAMES[kind][0], "absent", "raises", "wrong")
    }
    assert {row["package"] for row in rows.values()} == {"toy-plugins 1.2"}
    for kind in KINDS:
        assert rows[kind, NAMES[kind][0]]["problem"] is None
        assert "no_such_file" in rows[kind, "absent"]["problem"]
        assert rows[kind, "wrong"]["problem"]


@pytest.mark.parametrize(("said", "count"), [("off", 0), ("another-package", 0), ("toy-plugins, other", 20)])
def test_a_variable_says_which_packages_may_bring_plug_ins(python, said, count):
    done = python("-m", "toolkit.telemetry.cli", "setup", "plugins", "--json", TELEMETRY_PLUGINS=said)

    assert len(json.loads(done.stdout)["plugins"]) == count
